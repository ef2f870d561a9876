"""A replay of a trace: at the load that was asked for, and the same each time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from scheduler.errors import SchedulerError
from scheduler.request import Slo
from scheduler.simulator.errors import SimulationError
from scheduler.simulator.replay import ReplayOptions, prepare
from scheduler.simulator.tiers import Tier

EXAMPLES = Path(__file__).parents[3] / "examples" / "traces"
OPTIONS = ReplayOptions(
    trace=EXAMPLES / "servegen_m-small_excerpt.csv", policy="vtc", load=0.5, limit=300, seed=7
)


def test_replay_is_deterministic() -> None:
    """Two replays of the same options give the same JSON to the byte."""
    first, second = (json.dumps(prepare(OPTIONS).run()[1]) for _ in range(2))
    assert first == second


def test_load_is_offered_tokens_over_capacity() -> None:
    """Twice the load offers twice the tokens a second, of the same capacity."""
    half, whole = prepare(OPTIONS), prepare(replace(OPTIONS, load=1.0))
    assert half.capacity_tokens_per_s == whole.capacity_tokens_per_s
    assert half.capacity_tokens_per_s is not None
    assert half.workload.offered_tokens_per_s == pytest.approx(0.5 * half.capacity_tokens_per_s)
    assert whole.workload.offered_tokens_per_s == pytest.approx(whole.capacity_tokens_per_s)


def test_without_a_load_the_trace_keeps_its_times() -> None:
    """Nothing is measured first, and no load is claimed."""
    replay = prepare(replace(OPTIONS, load=None))
    assert (replay.load, replay.capacity_tokens_per_s) == (None, None)
    assert replay.workload.arrivals[10].at_s == pytest.approx(3.166, abs=3)


def test_lengths_without_times_have_load_one(tmp_path: Path) -> None:
    """A file of lengths is replayed at capacity where no load was chosen."""
    path = tmp_path / "lengths.csv"
    path.write_text(
        "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n" + "99,9,108,11\n" * 50
    )
    replay = prepare(replace(OPTIONS, trace=path, load=None))
    assert replay.load == 1.0
    assert replay.workload.offered_tokens_per_s == pytest.approx(
        replay.capacity_tokens_per_s or 0.0
    )


def test_promises_and_tiers_are_applied() -> None:
    """A tier's promise comes before the one for everybody."""
    options = replace(
        OPTIONS, slo=Slo(ttft_s=9.0), tiers=[Tier(clients=("14",), weight=3.0, ttft_s=1.0)]
    )
    arrivals = prepare(options).workload.arrivals
    promises = {(a.tenant_id == "14", a.weight, a.slo.ttft_s) for a in arrivals}
    assert promises == {(True, 3.0, 1.0), (False, 1.0, 9.0)}


def test_lengths_may_be_left_to_predict() -> None:
    """With `max_tokens` answers are as long as before, though requests ask for more."""
    _, exact = prepare(OPTIONS).run()
    _, open_ended = prepare(replace(OPTIONS, max_tokens=8_192)).run()
    assert open_ended["completed"] == exact["completed"] == 300
    served = [sum(t["tokens"] for t in f["tenants"]) for f in (exact, open_ended)]
    assert served[0] == served[1]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"policy": "nonsense"}, "nonsense"),
        ({"preset": "nonsense"}, "no preset 'nonsense': choose one of mixed"),
        ({"machine": "nonsense"}, "no machine 'nonsense'"),
        ({"trace": EXAMPLES / "README.md"}, "not a trace"),
    ],
)
def test_unknown_names_are_refused(change: dict[str, object], complaint: str) -> None:
    """What does not exist is named, with what does."""
    with pytest.raises(SchedulerError, match=complaint):
        prepare(replace(OPTIONS, **change))  # type: ignore[arg-type]
    assert issubclass(SimulationError, SchedulerError)
