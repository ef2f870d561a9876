"""The shortest pace that others can pay for, and prompts that no promise can hold for."""

from __future__ import annotations

from dataclasses import replace

import pytest

import fakes
from engine.step_cost import LinearCost, StepCost, load_profile
from fakes import Driver
from scheduler.admission import least_pace_s
from scheduler.config import PRESETS
from scheduler.core import Scheduler
from scheduler.learn.step_model import StepModel
from scheduler.request import Admit, FinishReason, Reject, Slo

# Steps of 10 ms and 0.1 ms a token: 256 tokens in 35.6 ms, 7,191 a second.
_LINE = LinearCost(0.010, 0.0001)
_COST = StepCost("line", _LINE, _LINE)


def least(max_loss: float, *, margin: float = 1.0, cost: StepCost = _COST) -> float:
    model = StepModel(cost, margin=margin)
    return least_pace_s(model, max_num_tokens=256, max_loss=max_loss)


def test_the_least_pace_loses_no_more_than_is_allowed() -> None:
    """Steps of the least pace compute the share that must be left of what full ones do."""
    pace_s = least(0.2)
    most_per_s = 256 / 0.0356
    assert (pace_s - 0.010) / 0.0001 / pace_s >= 0.8 * most_per_s
    shorter_s = pace_s - 0.0016
    assert (shorter_s - 0.010) / 0.0001 / shorter_s < 0.8 * most_per_s


def test_more_loss_and_better_predictions_allow_a_shorter_pace() -> None:
    """The pace falls with the loss allowed, and grows with the margin of predictions."""
    assert least(0.5) < least(0.2) < least(0.05) < least(0.0)
    assert least(0.0) == pytest.approx(0.0356)
    assert least(0.2, margin=1.5) == pytest.approx(1.5 * least(0.2))


def test_what_was_measured_is_refused() -> None:
    """On an A100 a pace of 30 ms costs a third of the machine: 45 ms is what a fifth buys."""
    model = StepModel(load_profile("a100-llama-3-8b"), margin=1.0)
    assert least_pace_s(model, max_num_tokens=2_560, max_loss=0.2) == pytest.approx(0.045, abs=1e-3)
    assert least_pace_s(model, max_num_tokens=2_560, max_loss=0.36) > 0.030


def driver_of(*, is_known: bool = True) -> Driver:
    engine = fakes.make_engine(
        cost=_COST, max_model_len=4_000, num_blocks=2_000, max_num_batched_tokens=256
    )
    driver = Driver(engine)
    model = StepModel(_COST, margin=1.0) if is_known else StepModel()
    config = replace(PRESETS["mixed"], prefix_caching=False)
    driver.scheduler = Scheduler(engine.info, config, step_model=model)
    return driver


def test_the_scheduler_says_nothing_before_it_knows() -> None:
    """A guess of what steps cost refuses no promise."""
    assert driver_of(is_known=False).scheduler.least_pace_s() == 0.0
    assert driver_of().scheduler.least_pace_s() == pytest.approx(least(0.2))


def test_a_prompt_longer_than_the_promise_is_served_without_one() -> None:
    """It is taken in, said to have no promise, and not dropped when the promise is over."""
    driver = driver_of()
    slo = Slo(ttft_s=0.2, tpot_s=0.5)
    long = fakes.make_request("long", prompt=[1] * 3_000, max_tokens=2, ignore_eos=True, slo=slo)
    assert driver.offer(long) == Admit(0, is_promised=False)
    short = fakes.make_request("short", prompt=[2] * 300, max_tokens=2, ignore_eos=True, slo=slo)
    assert driver_of().offer(short) == Admit(0, is_promised=True)
    driver.run()
    assert driver.now > 0.2
    assert driver.last["long"].finish_reason is FinishReason.LENGTH


def test_a_promise_that_could_be_kept_alone_still_refuses() -> None:
    """Where the queue is what makes it late, a request is refused as before."""
    driver = driver_of()
    for n in range(8):
        tenant = f"t{n}"
        driver.offer(
            fakes.make_request(f"r{n}", prompt=[n] * 1_000, max_tokens=2, tenant_id=tenant)
        )
    slo = Slo(ttft_s=0.2)
    answer = driver.offer(fakes.make_request("late", prompt=[9] * 1_000, max_tokens=2, slo=slo))
    assert isinstance(answer, Reject)
    assert answer.cause == "ttft"
