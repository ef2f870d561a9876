"""Traces are recognised by their content, and read as their documentation says."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from scheduler.simulator import servegen
from scheduler.simulator.errors import SimulationError
from scheduler.simulator.traces import read_trace

EXAMPLES = Path(__file__).parents[3] / "examples" / "traces"


@pytest.mark.parametrize(
    ("name", "num_requests", "num_tenants"),
    [
        ("azure_conv_2023_excerpt.csv", 2_000, 1),
        ("servegen_m-large_excerpt.csv", 9_965, 48),
        ("servegen_m-small_excerpt.csv", 10_690, 18),
        ("mooncake_conversation_excerpt.jsonl", 796, 644),
    ],
)
def test_shipped_trace_reads(name: str, num_requests: int, num_tenants: int) -> None:
    """Every trace that is shipped is small, ordered in time, and has lengths above zero."""
    assert (EXAMPLES / name).stat().st_size <= 200_000
    workload = read_trace(EXAMPLES / name)
    assert len(workload.arrivals) == num_requests
    assert len({a.tenant_id for a in workload.arrivals}) == num_tenants
    times = [a.at_s for a in workload.arrivals]
    assert times == sorted(times)
    assert times[0] >= 0
    assert all(a.num_prompt_tokens > 0 < a.num_output_tokens for a in workload.arrivals)


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace.any"
    path.write_text(text)
    return path


def test_azure_times_count_from_the_first_row(tmp_path: Path) -> None:
    """Dates become seconds; the seventh digit of a second is dropped."""
    path = write(
        tmp_path,
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:48.1805901,396,0\n",
    )
    first, second = read_trace(path).arrivals
    assert (first.at_s, first.num_prompt_tokens, first.num_output_tokens) == (0.0, 374, 44)
    assert second.at_s == pytest.approx(1.5)
    assert second.num_output_tokens == 1


def test_mooncake_tenants_are_who_shares_what_not_all_share(tmp_path: Path) -> None:
    """Below a system prompt of everyone's, requests with an equal next block are one tenant's."""
    rows = [
        {"timestamp": 0, "input_length": 1000, "output_length": 3, "hash_ids": [0, 1]},
        {"timestamp": 1500, "input_length": 1400, "output_length": 3, "hash_ids": [0, 1, 2]},
        {"timestamp": 1600, "input_length": 600, "output_length": 3, "hash_ids": [0, 5]},
    ]
    path = write(tmp_path, "\n".join(json.dumps(row) for row in rows))
    first, second, third = read_trace(path).arrivals
    assert first.tenant_id == second.tenant_id != third.tenant_id
    assert second.at_s == 1.5
    prompts = [a.request(n).prompt_token_ids for n, a in enumerate((first, second, third))]
    assert [len(prompt) for prompt in prompts] == [1000, 1400, 600]
    assert prompts[0] == prompts[1][:1000]
    assert prompts[2][:512] == prompts[0][:512]
    assert prompts[2][512] != prompts[0][512]
    assert first.salt == third.salt


def test_lengths_come_at_one_a_second_and_need_a_load(tmp_path: Path) -> None:
    """Lengths without times get Poisson arrivals that depend on the seed alone."""
    rows = "".join("10,20,30,0.5\n" for _ in range(2_000))
    header = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n"
    path = write(tmp_path, header + rows)
    workload = read_trace(path, seed=1)
    assert not workload.has_times
    assert workload.duration_s / 2_000 == pytest.approx(1.0, rel=0.1)
    assert read_trace(path, seed=1) == workload
    assert read_trace(path, seed=2) != workload


def day(*, windows: int = 3) -> dict[str, Any]:
    lengths = {"input_tokens": [10, 20, 30], "output_tokens": [1, 5, 9]}
    clients = {
        "busy": ("G", 0.25, 2.0),
        "calm": ("W", 2.0, 1.0),
        "plain": ("-", 0.0, 0.5),
    }
    return {
        "source": "made here",
        "window_s": 600,
        "quantile_levels": [0, 0.5, 1],
        "clients": {
            name: {
                "rate": [rate] * windows,
                "cv": [1.0] * windows,
                "pat": [pattern] * windows,
                "shape": [shape] * windows,
                "len": {"0": lengths, "600": {}},
            }
            for name, (pattern, shape, rate) in clients.items()
        },
    }


def test_day_is_drawn_at_its_rates_and_lengths(tmp_path: Path) -> None:
    """Clients come at their rates, with lengths within their quantiles around their medians."""
    path = write(tmp_path, json.dumps(day()))
    workload = read_trace(path, seed=3)
    counts = Counter(a.tenant_id for a in workload.arrivals)
    assert counts["calm"] == pytest.approx(1_800, rel=0.05)
    assert counts["plain"] == pytest.approx(900, rel=0.15)
    assert counts["busy"] == pytest.approx(3_600, rel=0.25)
    prompts = [a.num_prompt_tokens for a in workload.arrivals]
    assert (min(prompts), max(prompts)) == (10, 30)
    assert mean(prompts) == pytest.approx(20, rel=0.05)
    assert read_trace(path, seed=3) == workload
    assert len(read_trace(path, seed=3, limit=50).arrivals) == 50


def test_day_without_lengths_is_silent(tmp_path: Path) -> None:
    """A client of whose lengths nothing is known sends nothing."""
    empty = day()
    empty["clients"]["busy"]["len"] = {"0": {}}
    workload = read_trace(write(tmp_path, json.dumps(empty, indent=1)))
    assert {a.tenant_id for a in workload.arrivals} == {"calm", "plain"}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "not a trace that is known"),
        ("a,b\n1,2\n", "not a trace that is known"),
        ("{}", "not a trace that is known"),
        ("{", "does not read"),
        ("[" * 100_000, "not a trace that is known"),
        ('{"a":' * 100_000, "does not read"),
        ("t_s,client,input_tokens,output_tokens\n", "no requests"),
        ("t_s,client,input_tokens,output_tokens\n1,a,x,2\n", "line 2, column input_tokens: x is"),
        ("t_s,client,input_tokens,output_tokens\n1,a\n", "line 2, column input_tokens: nothing"),
        ('{"timestamp": 0, "hash_ids": [1]}', "line 1, column input_length: nothing is"),
        ('{"timestamp": 0, "hash_ids": []}', "line 1, column hash_ids: is not a list"),
        ('{"timestamp": 0, "hash_ids": [-1]}', "line 1, column hash_ids: has a block"),
        ('{"timestamp": 0, "hash_ids": [99999999999]}', "line 1, column hash_ids: has a block"),
        ('{"timestamp": NaN, "hash_ids": [1]}', "line 1, column timestamp: nan is not a number"),
        ('{"timestamp": -5, "hash_ids": [1]}', "line 1, column timestamp: -5 is no time"),
        ('{"timestamp": 0, "hash_ids": [1]}\n7', "line 2 is not a JSON object"),
    ],
)
def test_what_does_not_read_says_so(tmp_path: Path, text: str, complaint: str) -> None:
    """A file that is no trace, or a broken one, is refused with its name and the reason."""
    with pytest.raises(SimulationError, match=complaint):
        read_trace(write(tmp_path, text))


@pytest.mark.parametrize(
    ("head", "row", "column"),
    [
        ("TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:15:46,-7,3", "ContextTokens"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:15:46,7,-3", "GeneratedTokens"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens", "yesterday,7,3", "TIMESTAMP"),
        ("t_s,client,input_tokens,output_tokens", "nan,a,1,2", "t_s"),
        ("t_s,client,input_tokens,output_tokens", "inf,a,1,2", "t_s"),
        ("t_s,client,input_tokens,output_tokens", "1e300,a,1,2", "t_s"),
        ("t_s,client,input_tokens,output_tokens", "-1,a,1,2", "t_s"),
        ("t_s,client,input_tokens,output_tokens", "1,a,-1,2", "input_tokens"),
        ("t_s,client,input_tokens,output_tokens", "1,a,1,99999999999999999999", "output_tokens"),
        ("t_s,client,input_tokens,output_tokens", "1,a,1," + "9" * 5_000, "output_tokens"),
        ("num_prefill_tokens,num_decode_tokens", "100000000000,1", "num_prefill_tokens"),
        ("num_prefill_tokens,num_decode_tokens", "1,-1", "num_decode_tokens"),
    ],
)
def test_numbers_that_none_can_have_are_named(
    tmp_path: Path, head: str, row: str, column: str
) -> None:
    """A count below zero or beyond any prompt, or a time that is none, is named by its place."""
    good = {"TIMESTAMP": "2023-11-16 18:15:46,1,1", "t_s": "0,a,1,1"}.get(head.split(",")[0], "1,1")
    with pytest.raises(SimulationError, match=rf"trace\.any: line 3, column {column}: "):
        read_trace(write(tmp_path, f"{head}\n{good}\n{row}\n"))


def test_row_with_too_many_fields_is_named(tmp_path: Path) -> None:
    """A row that the header does not explain is not read at a guess."""
    text = "t_s,client,input_tokens,output_tokens\n1,a,1,2,3\n"
    with pytest.raises(SimulationError, match="line 2 has 5 fields, and there are 4 columns"):
        read_trace(write(tmp_path, text))


@pytest.mark.parametrize("text", ["\0", 't_s,client,input_tokens,output_tokens\n"' + "a" * 200_000])
def test_what_is_no_csv_says_so(tmp_path: Path, text: str) -> None:
    """What the reader of CSV chokes on is an error of the trace's."""
    with pytest.raises(SimulationError, match=r"trace\.any"):
        read_trace(write(tmp_path, text))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"rate": [math.nan] * 3}, "client busy, window 0: .*rate nan"),
        ({"rate": [1e9] * 3}, "client busy, window 0: more than 2,000 requests"),
        ({"shape": [1e-300] * 3}, "client busy, window 0: "),
        ({"shape": []}, "client busy, window 0: "),
        ({"len": {"0": {"input_tokens": [1e300] * 3, "output_tokens": [1] * 3}}}, "a length of"),
        ({"len": {"0": {"input_tokens": [-5] * 3, "output_tokens": [1] * 3}}}, "a length of -5"),
        ({"len": {"0": {"input_tokens": [math.nan] * 3, "output_tokens": [1] * 3}}}, "of nan"),
        ({"len": 7}, "does not read|busy"),
    ],
)
def test_day_that_draws_nonsense_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], complaint: str
) -> None:
    """Tables that make no requests are refused by the client's name, and never run for ever."""
    monkeypatch.setattr(servegen, "_MAX_ARRIVALS", 2_000)
    broken = day()
    broken["clients"]["busy"] |= change
    with pytest.raises(SimulationError, match=complaint):
        read_trace(write(tmp_path, json.dumps(broken)))


def test_day_of_no_length_says_so(tmp_path: Path) -> None:
    """A window must last."""
    with pytest.raises(SimulationError, match="window_s is 0"):
        read_trace(write(tmp_path, json.dumps(day() | {"window_s": 0})))


def test_missing_trace_says_so(tmp_path: Path) -> None:
    """A file that is not there is named."""
    with pytest.raises(SimulationError, match=r"nowhere\.csv"):
        read_trace(tmp_path / "nowhere.csv")


def test_limit_takes_the_first_requests(tmp_path: Path) -> None:
    """A limited trace ends with the last request that it keeps."""
    workload = read_trace(EXAMPLES / "servegen_m-small_excerpt.csv", limit=100)
    assert len(workload.arrivals) == 100
    assert workload.duration_s == workload.arrivals[-1].at_s
