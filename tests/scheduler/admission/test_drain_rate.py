"""How fast a queue is thought to drain: by what was seen of a backlog, while that holds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

import fakes
from engine.step_cost import LinearCost, StepCost, StepFeatures
from fakes import Driver
from scheduler.admission.drain_rate import DrainRate
from scheduler.config import PRESETS
from scheduler.core import Scheduler
from scheduler.learn.step_model import StepModel
from scheduler.request import Admit, Reject, Slo

# A millisecond a token, and ten for a row: a full step of 100 tokens takes a tenth of a second.
_LINE = LinearCost(0.0, 1e-3, per_decode_token_s=1e-2, per_decode_context_token_s=1e-4)
_COST = StepCost("linear", _LINE, _LINE)
_INFO = fakes.make_engine(
    cost=_COST, max_model_len=40_000, num_blocks=20_000, max_num_batched_tokens=100, max_num_seqs=64
).info


def driver_of() -> Driver:
    driver = Driver(fakes.make_engine(cost=_COST, max_model_len=40_000, num_blocks=20_000,
                                      max_num_batched_tokens=100, max_num_seqs=64))  # fmt: skip
    config = replace(PRESETS["mixed"], prefix_caching=False)
    driver.scheduler = Scheduler(_INFO, config, step_model=StepModel(_COST, margin=1.0))
    return driver


def promised(driver: Driver, name: str, num_tokens: int, ttft_s: float) -> Admit | Reject:
    return driver.offer(
        fakes.make_request(
            name, tenant_id="light", prompt=[1] * num_tokens, max_tokens=2, ignore_eos=True,
            arrival_s=driver.now, slo=Slo(ttft_s=ttft_s),
        )
    )  # fmt: skip


def test_nobody_is_refused_for_rows_that_another_has_given_up() -> None:
    """Once a flood was cancelled a promise is taken that an idle machine keeps, its rows or not."""
    driver = driver_of()
    for n in range(40):
        driver.offer(
            fakes.make_request(
                f"flood-{n}", tenant_id="heavy", prompt=[2] * 100, max_tokens=1_000,
                ignore_eos=True, arrival_s=driver.now,
            )
        )  # fmt: skip
    for _ in range(60):
        driver.turn()
    assert not isinstance(promised(driver, "beside", 50, 0.1), Admit)
    for n in range(40):
        driver.scheduler.cancel(f"flood-{n}", driver.now)
    assert driver.scheduler.snapshot().running == 0
    assert isinstance(promised(driver, "alone", 50, 0.1), Admit)


@pytest.mark.parametrize("num_tokens", range(10, 900, 30))
def test_an_idle_machine_refuses_no_prompt_that_it_computes_in_time(num_tokens: int) -> None:
    """A prompt of two steps and a little is not taken for one of three: nothing fills the last."""
    # Beside a row in each step, as prompts are always expected to be.
    alone_s = num_tokens * 1e-3 + math.ceil(num_tokens / 100) * 0.0101
    answer = promised(driver_of(), "alone", num_tokens, alone_s / 0.85)
    assert isinstance(answer, Admit)
    assert answer.is_promised


def _of_a_slow_backlog(rate: DrainRate) -> float:
    """Teach that steps drain twenty tokens where they could a hundred, in steps of a second."""
    now = 0.0
    for _ in range(40):
        now += 1.0
        features = StepFeatures(num_prefill_tokens=20, prefill_context_tokens=0)
        rate.note(features, 1.0, now, is_backlogged=True)
    return now


def _without(rate: DrainRate, now: float, after_s: float) -> None:
    rate.rest(now + after_s)


def _by_a_step(rate: DrainRate, now: float, after_s: float) -> None:
    rate.note(StepFeatures(), 0.0, now + after_s, is_backlogged=False)


@pytest.mark.parametrize("rest", [_without, _by_a_step])
def test_what_was_seen_of_a_backlog_fades_while_nothing_runs(
    rest: Callable[[DrainRate, float, float], None],
) -> None:
    """After a minute it is as if nothing were known; after a hundredth of a second as before."""
    new = DrainRate(_INFO, StepModel(_COST, margin=1.0))
    slow, rested, short = (DrainRate(_INFO, StepModel(_COST, margin=1.0)) for _ in range(3))
    for rate in (slow, rested, short):
        now = _of_a_slow_backlog(rate)
    rest(short, now, _INFO.depth * 1.0 + 0.01)
    rest(rested, now, 60.0)
    assert slow.tokens_per_s() < 0.25 * new.tokens_per_s()
    assert short.tokens_per_s() == pytest.approx(slow.tokens_per_s(), rel=0.2)
    assert rested.tokens_per_s() == pytest.approx(new.tokens_per_s(), rel=0.01)


def test_the_last_step_is_as_full_as_what_may_come_behind() -> None:
    """What waits behind a prompt, and comes until its last step begins, is computed beside it."""
    rate = DrainRate(_INFO, StepModel(_COST, margin=1.0))
    for behind, inflow_per_s, expected_s in (
        (0, 0.0, 0.21), (30, 0.0, 0.24), (0, 100.0, 0.23), (1e9, 0.0, 0.3), (0, 1e9, 0.3),
    ):  # fmt: skip
        waited_s = rate.wait_s(210, in_flight_s=None, num_behind=behind, inflow_per_s=inflow_per_s)
        assert waited_s == pytest.approx(expected_s)


def test_a_promise_that_the_step_in_flight_would_break_is_not_made() -> None:
    """A prompt that comes as another's was begun is told so, however idle it was before."""
    driver = driver_of()
    assert isinstance(promised(driver, "first", 90, 0.12), Admit)
    assert driver.scheduler.plan(driver.now) is not None
    assert isinstance(promised(driver, "late", 90, 0.12), Reject)
    assert isinstance(promised(driver, "in-time", 90, 0.25), Admit)


def _slow_rate(num_tokens: int) -> DrainRate:
    """Have seen ten seconds of a backlog of which each step took so little."""
    rate = DrainRate(_INFO, StepModel(_COST, margin=1.0))
    for step in range(1, 101):
        features = StepFeatures(num_prefill_tokens=num_tokens)
        rate.note(features, 0.1, step / 10, is_backlogged=True)
    return rate


def test_a_machine_that_stands_still_is_predicted_to_take_long_and_not_for_ever() -> None:
    """Of a backlog of which nothing was computed a fiftieth is expected to be."""
    rate = _slow_rate(0)
    for step in range(101, 4_000):
        rate.note(StepFeatures(), 0.1, step / 10, is_backlogged=True)
    assert rate.tokens_per_s() == pytest.approx(1_000.0 / 50)


def test_what_was_learned_fades_with_time_and_not_with_questions() -> None:
    """However often it is asked while the machine rests, it forgets as much."""
    asked_once, asked_often = _slow_rate(10), _slow_rate(10)
    asked_once.rest(14.0)
    for moment in range(101, 141):
        asked_often.rest(moment / 10)
        asked_often.rest(moment / 10)
    assert asked_often.ratio == pytest.approx(asked_once.ratio)
    assert 0.2 < asked_once.ratio < 1.0


def test_slots_that_nobody_has_left_are_awaited_for_twice_as_long() -> None:
    """In ten seconds without an end half of one counts, and where nothing was seen nothing does."""
    rate = DrainRate(_INFO, StepModel(_COST, margin=1.0))
    assert rate.slots_s(1.0) == 0.0
    for _ in range(400):
        rate.note_ends(0, 0.1)
    assert rate.slots_s(3.0) == pytest.approx(3 * 20.0, rel=0.05)


def test_what_is_in_flight_ends_first() -> None:
    """Beside rows that run a prompt waits for the steps that were launched before it."""
    rate = DrainRate(_INFO, StepModel(_COST, margin=1.0))
    idle_s = rate.wait_s(50, in_flight_s=None)
    assert rate.wait_s(50, in_flight_s=0.06) == pytest.approx(idle_s + 0.06)
