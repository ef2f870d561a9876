"""Replaying arrivals by the clock, on a simulated engine that sleeps through its steps."""

from __future__ import annotations

import time
from array import array

import pytest

from engine.contract import StepPlan, StepResult
from engine.simulated import SimulatedEngine
from engine.step_cost import LinearCost, StepCost
from scheduler.batching.baselines import BatchingConfig, make_baseline
from scheduler.bench.drive import BenchError
from scheduler.bench.replay import Coming, Journey, replay
from scheduler.core import Scheduler

STEP_S = 0.002
STEADY = StepCost("steady", small=LinearCost(STEP_S, 0.0), large=LinearCost(STEP_S, 0.0))


def make_engine() -> SimulatedEngine:
    return SimulatedEngine(
        STEADY,
        vocab_size=50,
        max_model_len=64,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        num_blocks=64,
        block_size=4,
        sleep=time.sleep,
    )


def coming(*requests: tuple[float, int, int]) -> list[Coming]:
    return [Coming(at_s, array("i", [5] * prompt), output) for at_s, prompt, output in requests]


def test_every_request_is_followed_from_its_arrival() -> None:
    """Times count from when a request was to come; no step runs before that."""
    engine = make_engine()
    result = replay(Scheduler(engine.info), engine, coming((0.0, 3, 5), (0.05, 3, 2)))
    first, second = result.journeys
    assert (first.num_output_tokens, second.num_output_tokens) == (5, 2)
    assert first.latency_s >= 5 * STEP_S
    assert STEP_S <= first.ttft_s < first.latency_s
    assert first.latency_per_token_s == first.latency_s / 5
    assert second.came_s - first.came_s == pytest.approx(0.05)
    assert result.wall_s >= 0.05 + 2 * STEP_S
    assert result.num_steps == 7
    assert result.output_tokens_per_s == 7 / result.wall_s


def test_waiting_for_a_batch_to_fill_is_waiting() -> None:
    """A baseline that gathers a batch is waited for, and its timeout is part of the latency."""
    engine = make_engine()
    server = make_baseline("static", engine.info, BatchingConfig(batch_size=2, timeout_s=0.03))
    result = replay(server, engine, coming((0.0, 3, 2)))
    assert result.journeys[0].ttft_s >= 0.03


def test_a_request_that_comes_during_a_step_has_waited_for_it() -> None:
    """What came while a step ran is offered late, and its time runs from when it came."""

    class Slow(SimulatedEngine):
        def launch(self, plan: StepPlan) -> StepResult:
            if plan.step_id == 0:
                time.sleep(0.04)
            return super().launch(plan)

    engine = Slow(
        STEADY,
        vocab_size=50,
        max_model_len=64,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        num_blocks=64,
        block_size=4,
    )
    result = replay(Scheduler(engine.info), engine, coming((0.0, 3, 1), (0.01, 3, 1)))
    assert result.journeys[1].ttft_s >= 0.03


def test_longest_gap_is_between_tokens_alone() -> None:
    """The time to the first token is no gap."""
    journey = Journey(came_s=10.0)
    for now in (15.0, 16.0, 18.5, 19.0):
        journey.take(1, now)
    assert (journey.ttft_s, journey.max_gap_s, journey.latency_s) == (5.0, 2.5, 9.0)
    assert journey.latency_per_token_s == 2.25


def test_refused_request_is_an_error_in_one_line() -> None:
    """A request that the engine has no room for stops the bench."""
    engine = make_engine()
    with pytest.raises(BenchError, match=r"a request was refused: .*64 tokens"):
        replay(Scheduler(engine.info), engine, coming((0.0, 60, 10)))
