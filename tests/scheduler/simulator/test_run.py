"""The virtual clock: steps back to back, arrivals at their own times, everything recorded."""

from __future__ import annotations

from dataclasses import replace
from itertools import repeat

import pytest

from engine.step_cost import LinearCost, StepCost
from scheduler.config import SchedulerConfig, first_come
from scheduler.request import FinishReason, RejectCode, Slo
from scheduler.simulator.records import Record, Run
from scheduler.simulator.run import simulate
from scheduler.simulator.setup import Machine
from scheduler.simulator.workload import Arrival, Workload

# Every step takes a second.
MACHINE = Machine(
    cost=StepCost("unit", small=LinearCost(1.0, 0.0), large=LinearCost(1.0, 0.0)),
    max_model_len=200,
    max_num_seqs=4,
    max_num_batched_tokens=100,
    num_blocks=100,
    block_size=4,
)
CONFIG = first_come(prefix_caching=True)


def arrival(at_s: float = 0.0, *, prompt: int = 10, output: int = 3, **fields: object) -> Arrival:
    values = {"tenant_id": "acme", **fields}
    return Arrival(at_s=at_s, num_prompt_tokens=prompt, num_output_tokens=output, **values)  # type: ignore[arg-type]


def run(*arrivals: Arrival, machine: Machine = MACHINE, config: SchedulerConfig = CONFIG) -> Run:
    workload = Workload(name="w", arrivals=arrivals, duration_s=arrivals[-1].at_s)
    return simulate(machine, config, workload, checks=True)


def only(done: Run) -> Record:
    [record] = done.records
    return record


def test_request_alone_takes_a_step_a_token() -> None:
    """Its first token comes a step after it did, the others a step apart."""
    record = only(run(arrival(5.0)))
    assert (record.admitted_s, record.first_s, record.last_s) == (5.0, 6.0, 8.0)
    assert (record.ttft_s, record.tpot_s, record.max_gap_s) == (1.0, 1.0, 1.0)
    assert (record.num_output_tokens, record.finish_reason) == (3, FinishReason.LENGTH)


@pytest.mark.parametrize("depth", [1, 2])
def test_arrival_within_a_step_waits_for_the_next_plan(depth: int) -> None:
    """Who comes while a step runs is planned with the next one that is made."""
    done = run(
        arrival(0.0, output=6), arrival(0.5, output=2), machine=replace(MACHINE, depth=depth)
    )
    second = done.records[1]
    # With two in flight the next step has been launched already.
    assert second.admitted_s == 1.0
    assert second.first_s == (2.0 if depth == 1 else 3.0)


@pytest.mark.parametrize("depth", [1, 2])
def test_everyone_is_served_whole_under_the_referee(depth: int) -> None:
    """A crowd with too little memory ends complete, whoever had to be sent back."""
    crowd = [arrival(n / 4, prompt=7 + n % 30, output=5 + n % 40) for n in range(60)]
    done = run(*crowd, machine=replace(MACHINE, num_blocks=30, depth=depth))
    assert [r.num_output_tokens for r in done.records] == [a.num_output_tokens for a in crowd]
    assert all(record.is_complete for record in done.records)
    assert sum(done.queue.changes) == 0
    expected = sum(a.num_prompt_tokens + 2 * a.num_output_tokens for a in crowd)
    assert sum(done.service.amounts) == expected


def test_shared_prefix_is_not_paid_twice() -> None:
    """Service counts what was computed: the blocks of a prefix hit are free."""
    blocks = {"block_ids": (1, 2), "block_tokens": 8, "salt": b"shared"}
    done = run(arrival(0.0, prompt=16, **blocks), arrival(10.0, prompt=16, **blocks))
    assert [record.num_cached_tokens for record in done.records] == [0, 12]
    assert sum(done.service.amounts) == 16 + 4 + 2 * (3 + 3)


def test_request_ends_by_itself_at_its_true_length() -> None:
    """With `max_tokens` the model ends the answer where the trace does."""
    record = only(run(arrival(output=4, max_tokens=50)))
    assert (record.num_output_tokens, record.finish_reason) == (4, FinishReason.STOP)


def test_refusal_is_recorded() -> None:
    """A request that can never fit is refused, and nothing of it is served."""
    done = run(arrival(prompt=300), arrival())
    assert done.records[0].reject is RejectCode.CONTEXT_LENGTH_EXCEEDED
    assert not done.records[0].has_begun
    assert done.records[1].is_complete


def test_tokens_are_late_by_their_own_deadlines() -> None:
    """Token k is due k paces after the first was due, or came; early ones buy time."""
    paces = {0.4: (2, False), 1.0: (0, True)}
    for tpot_s, (num_late, meets) in paces.items():
        record = only(run(arrival(slo=Slo(ttft_s=1.5, tpot_s=tpot_s))))
        assert (record.num_late, record.meets_slo) == (num_late, meets)
    relaxed = only(run(arrival(slo=Slo(ttft_s=10.0, tpot_s=0.4))))
    assert relaxed.num_late == 0
    assert not only(run(arrival(slo=Slo(max_gap_s=0.5)))).meets_slo
    assert not only(run(arrival(slo=Slo(ttft_s=0.5)))).meets_slo
    assert not only(run(arrival(ttlt_s=2.5))).meets_slo
    assert only(run(arrival(ttlt_s=3.0))).meets_slo


def test_backlog_is_topped_up_until_arrivals_are_over() -> None:
    """So many of the backlog are kept in the system, and they are told from the arrivals."""
    workload = Workload(
        name="w",
        arrivals=[arrival(0.0), arrival(50.0)],
        duration_s=50.0,
        backlog=repeat(arrival(tenant_id="batch")),
        backlog_depth=2,
    )
    done = simulate(MACHINE, CONFIG, workload, checks=True)
    assert len(done.online) == 2
    backlog = [record for record in done.records if record.is_backlog]
    # Two at a time, three steps each.
    assert len(backlog) == pytest.approx(2 * 50 / 3, abs=4)
    assert all(record.is_complete for record in backlog)


def test_run_stops_at_its_time() -> None:
    """A run that is cut short keeps what has been served by then."""
    workload = Workload(name="w", arrivals=[arrival(output=100)], duration_s=0.0)
    done = simulate(MACHINE, CONFIG, workload, until_s=10.0)
    assert done.end_s == 10.0
    assert only(done).num_output_tokens == 10
    assert not only(done).is_complete


def test_ends_are_told_as_they_come() -> None:
    """Whoever shows progress hears of each request once."""
    ended: list[Record] = []
    arrivals = [arrival(float(n)) for n in range(7)]
    workload = Workload(name="w", arrivals=arrivals, duration_s=6.0)
    done = simulate(MACHINE, CONFIG, workload, on_end=ended.extend)
    assert sorted(map(id, ended)) == sorted(map(id, done.records))


def test_run_may_be_ended_by_who_watches() -> None:
    """A run that has shown enough stops with the step that showed it."""
    arrivals = [arrival(float(n)) for n in range(7)]
    workload = Workload(name="w", arrivals=arrivals, duration_s=6.0)
    done = simulate(MACHINE, CONFIG, workload, on_end=lambda ended: bool(ended))
    assert sum(record.is_complete for record in done.records) == 1
    assert done.end_s == 3.0
