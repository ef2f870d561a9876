"""Sluice's own traces: every column does what is documented, and errors name their place."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler.request import Band, FinishReason, Slo
from scheduler.simulator import own_format
from scheduler.simulator.errors import SimulationError
from scheduler.simulator.replay import ReplayOptions, prepare
from scheduler.simulator.traces import read_trace
from scheduler.simulator.workload import Arrival

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "traces" / "contest.csv"
NEEDED = "at_s,tenant,input_tokens,output_tokens"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "own.csv"
    path.write_text(text)
    return path


def read(tmp_path: Path, text: str) -> list[Arrival]:
    return list(read_trace(write(tmp_path, text)).arrivals)


def test_four_columns_suffice(tmp_path: Path) -> None:
    """What is left out is as in a request that says nothing, and columns stand in any order."""
    [arrival] = read(tmp_path, "tenant,output_tokens,at_s,input_tokens\na,3,1.5,70\n")
    assert arrival == Arrival(
        at_s=1.5, tenant_id="a", num_prompt_tokens=70, num_output_tokens=3, block_tokens=1
    )


def test_every_column_is_read(tmp_path: Path) -> None:
    """A row with all of them, in the units of their names; spaces beside a name do no harm."""
    [arrival] = read(
        tmp_path,
        ", ".join(own_format.COLUMNS)
        + "\n2.5,a,org,k,100,9,50,priority,2000,50,250,3,chat,64,4.5,7\n",
    )
    assert (arrival.organisation_id, arrival.key_id, arrival.max_tokens) == ("org", "k", 50)
    assert (arrival.band, arrival.weight) == (Band.PRIORITY, 3.0)
    assert arrival.slo == Slo(ttft_s=2.0, tpot_s=0.05, max_gap_s=0.25)
    assert (arrival.cancel_after_s, arrival.cancel_after_tokens) == (2.0, 7)
    request = arrival.request(0)
    assert (request.key_id, request.params.max_tokens, request.params.ignore_eos) == (
        "k",
        50,
        False,
    )


def test_prefix_is_shared_within_a_tenant_as_far_as_both_have_it(tmp_path: Path) -> None:
    """Equal names are equal beginnings; what follows is each prompt's own."""
    arrivals = read(
        tmp_path,
        f"{NEEDED},prefix_id,prefix_tokens\n"
        "0,a,100,1,x,64\n1,a,100,1,x,80\n2,a,100,1,y,64\n3,b,100,1,x,64\n",
    )
    first, second, other, foreign = (a.request(n) for n, a in enumerate(arrivals))
    prompts = [request.prompt_token_ids for request in (first, second, other)]
    assert [len(prompt) for prompt in prompts] == [100, 100, 100]
    assert prompts[0][:64] == prompts[1][:64]
    assert prompts[0][64] != prompts[1][64]
    assert prompts[0][0] != prompts[2][0]
    assert first.cache_salt == second.cache_salt != foreign.cache_salt


def test_less_is_drawn_than_the_model_would_where_less_was_asked_for(tmp_path: Path) -> None:
    """An answer ends at `max_tokens`."""
    [arrival] = read(tmp_path, f"{NEEDED},max_tokens\n0,a,5,90,20\n")
    assert arrival.num_output_tokens == arrival.request(0).params.max_tokens == 20


@pytest.mark.parametrize(
    ("columns", "row", "complaint"),
    [
        ("", "-1,a,1,1", "line 3, column at_s: -1 is no time"),
        ("", "nan,a,1,1", "line 3, column at_s: nan is not a number"),
        ("", "0,,1,1", "line 3, column tenant: is empty"),
        ("", "0,a,0,1", "line 3, column input_tokens: 0 is not 1 to"),
        ("", "0,a,1.5,1", r"line 3, column input_tokens: 1\.5 is not"),
        ("", "0,a,1,99999999999", "line 3, column output_tokens: 99999999999 is not"),
        (",tier", "0,a,1,1,gold", "line 3, column tier: 'gold' is none of priority"),
        (",ttft_ms", "0,a,1,1,0", "line 3, column ttft_ms: 0 is not above 0"),
        (",max_gap_ms", "0,a,1,1,inf", "line 3, column max_gap_ms: inf is not a number"),
        (",weight", "0,a,1,1,-2", "line 3, column weight: -2 is not above 0"),
        (",max_tokens", "0,a,1,1,0", "line 3, column max_tokens: 0 is not 1"),
        (",prefix_id", "0,a,1,1,x", "line 3, column prefix_tokens: is empty"),
        (",prefix_id,prefix_tokens", "0,a,1,1,,4", "line 3, column prefix_id: is empty"),
        (",prefix_id,prefix_tokens", "0,a,1,1,x,2", "line 3, column prefix_tokens: 2 is more than"),
        (",cancel_at_s", "5,a,1,1,4", "line 3, column cancel_at_s: 4 is before"),
        (",cancel_after_tokens", "5,a,1,1,0", "line 3, column cancel_after_tokens: 0 is not 1"),
        (",colour", "0,a,1,1,red", "line 1: no column 'colour': choose from at_s, tenant"),
        (",tenant", "0,a,1,1,b", "line 1: column tenant is there twice"),
    ],
)
def test_what_does_not_read_is_named_by_its_place(
    tmp_path: Path, columns: str, row: str, complaint: str
) -> None:
    """The file, the line and the column, and what is wrong with what stands there."""
    text = f"{NEEDED}{columns}\n1,good,1,1\n{row}\n"
    with pytest.raises(SimulationError, match=rf"own\.csv: {complaint}"):
        read_trace(write(tmp_path, text))


def test_cancelled_requests_end_when_they_are_given_up(tmp_path: Path) -> None:
    """By the clock, waiting or running, and by the tokens had; nothing is drawn after that."""
    rows = (
        "0,a,10,500,2,\n"  # While it decodes.
        "0,a,10,500,,20\n"  # Once it has twenty tokens.
        "0,a,10,5,100,\n"  # Done long before.
        "0,a,100000,5,1,\n"  # While its prompt is computed.
    )
    path = write(tmp_path, f"{NEEDED},cancel_at_s,cancel_after_tokens\n{rows}")
    done, figures = prepare(ReplayOptions(trace=path)).run()
    by_clock, by_tokens, whole, unbegun = done.records
    assert [r.is_cancelled for r in done.records] == [True, True, False, True]
    assert by_clock.finished_s == 2.0
    assert 10 < by_clock.num_output_tokens < 500
    assert by_tokens.num_output_tokens == 20
    assert by_tokens.finished_s == by_tokens.last_s
    assert whole.finish_reason is FinishReason.STOP or whole.is_complete
    assert (unbegun.finished_s, unbegun.num_output_tokens) == (1.0, 0)
    assert (figures["cancelled"], figures["completed"]) == (3, 1)
    assert figures["tenants"][0]["cancelled"] == 3


def test_tenants_are_told_apart_by_what_the_format_is_for(tmp_path: Path) -> None:
    """Refusals by cause, preemptions, share and entitlement of each; options fill the gaps only."""
    flood = "".join(f"{n / 50},flood,2000,200,,,acme\n" for n in range(1_000))
    calm = "".join(f"{n},calm,500,20,1,500,\n" for n in range(20))
    impossible = "1,calm,200000,20,1,,\n"
    text = f"{NEEDED},weight,ttft_ms,organisation\n{flood}{calm}{impossible}"
    options = ReplayOptions(trace=write(tmp_path, text), slo=Slo(ttft_s=4.0))
    replay = prepare(options)
    promises = {(a.tenant_id, a.slo.ttft_s) for a in replay.workload.arrivals}
    assert promises == {("flood", 4.0), ("calm", 0.5), ("calm", 4.0)}
    _, figures = replay.run()
    assert figures["machine"] == "a100-llama-3-8b"
    flood_of, calm_of = figures["tenants"]
    assert (flood_of["tenant"], flood_of["organisation"]) == ("flood", "acme")
    assert calm_of["organisation"] is None
    assert flood_of["refusals"].keys() == {"ttft"}
    assert sum(flood_of["refusals"].values()) == flood_of["rejected"] > 100
    assert calm_of["refusals"]["too_long"] == 1
    assert {"p50", "p99"} <= calm_of["max_gap_s"].keys()
    assert calm_of["preemptions"] == 0
    # It asked for little that could be served, and is entitled to all of it; the flood to the rest.
    shares = [tenant["entitled_share"] for tenant in (flood_of, calm_of)]
    assert sum(shares) == pytest.approx(1.0)
    total = sum(tenant["service"] for tenant in (flood_of, calm_of))
    assert 20 * 500 / total < shares[1] < 20 * 1_000 / total


def test_example_shows_a_contest() -> None:
    """The shipped example reads, and has every column in use."""
    workload = read_trace(EXAMPLE)
    assert EXAMPLE.stat().st_size <= 50_000
    assert {a.tenant_id for a in workload.arrivals} == {"chat", "documents", "agents"}
    assert EXAMPLE.read_text().splitlines()[0] == ",".join(own_format.COLUMNS)
    assert any(a.cancel_after_s for a in workload.arrivals)
    assert any(a.block_ids for a in workload.arrivals)
