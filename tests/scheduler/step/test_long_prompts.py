"""Which steps carry a long prompt on: those of its own, every so often, and no others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import fakes
from engine.contract import StepPlan
from engine.step_cost import LinearCost, StepCost, StepFeatures
from fakes import Driver
from scheduler.config import PRESETS, FairnessConfig
from scheduler.core import Scheduler
from scheduler.learn.step_model import StepModel
from scheduler.order.fair_tree import FairTree
from scheduler.request import Band
from scheduler.running.running_set import RunningSet
from scheduler.sequence import Sequence
from scheduler.step.long_prompts import LongPrompts

# A token takes 0.1 ms, a step 1 ms, and what a prompt has so far 0.1 ms for each ten tokens.
_LINE = LinearCost(intercept_s=0.001, per_token_s=0.0001, per_prefill_context_token_s=0.00001)
COST = StepCost("context", _LINE, _LINE)
BUDGET = 100


def make_driver(
    *, policy: str = "vtc", max_loss: float = 0.2, cost: StepCost = COST, caching: bool = False
) -> Driver:
    engine = fakes.make_engine(
        cost=cost, block_size=8, max_num_batched_tokens=BUDGET, num_blocks=4_000,
        max_model_len=8_000, max_num_seqs=32,
    )  # fmt: skip
    driver = Driver(engine)
    mixed = PRESETS["mixed"]
    fairness = replace(mixed.fairness, policy=policy, max_throughput_loss=max_loss)
    config = replace(mixed, fairness=fairness, prefix_caching=caching)
    driver.scheduler = Scheduler(engine.info, config, step_model=StepModel(cost, margin=1.0))
    return driver


def offer(
    driver: Driver, name: str, tenant: str, prompt: int, output: int = 2, band: Band = Band.DEFAULT
) -> None:
    driver.offer(
        fakes.make_request(
            name, tenant_id=tenant, prompt=[len(name)] * prompt, max_tokens=output,
            ignore_eos=True, band=band, arrival_s=driver.now,
        )
    )  # fmt: skip


def begin(driver: Driver, *, num_steps: int = 20) -> None:
    """Let a tenant's prompt of six thousand tokens run for a while, beside a row of another."""
    offer(driver, "row", "light", 8, 2_000)
    driver.turn()
    offer(driver, "long", "heavy", 6_000)
    for _ in range(num_steps):
        driver.turn()


def steps_with(driver: Driver, since: int = 0) -> list[bool]:
    """Tell of each step whether it carried on a long prompt."""
    return [_is_long(plan) for plan in driver.plans[since:]]


def test_rows_of_others_draw_in_between() -> None:
    """A long prompt sits steps out for rows of a tenant less ahead, for a fifth of the time."""
    driver = make_driver()
    begin(driver, num_steps=200)
    carried = steps_with(driver, 60)
    assert not driver.tokens["long"], "it rests anew after each step that it has"
    assert 0.02 < sum(carried) / len(carried) < 0.2
    plans = driver.plans[60:]
    assert 0.7 < _price_s([plan for plan in plans if _is_long(plan)]) / _price_s(plans) < 0.9


def test_the_loss_is_a_number() -> None:
    """With nothing to be given up it sits no step out, and the row waits for each chunk."""
    driver = make_driver(max_loss=0.0)
    begin(driver, num_steps=40)
    assert all(steps_with(driver, 10))


def test_a_newcomers_prompt_has_a_step_without_it() -> None:
    """A short prompt of another tenant does not wait for what the long one reads."""
    driver = make_driver()
    begin(driver, num_steps=60)
    offer(driver, "short", "light", 50)
    since = len(driver.plans)
    while not driver.tokens["short"]:
        driver.turn()
    with_it = [plan for plan in driver.plans[since:] if any(s.n_tokens == 50 for s in plan.slices)]
    assert not any(map(_is_long, with_it))
    assert len(driver.plans) - since <= 3


def test_nobody_else_means_no_rest() -> None:
    """Alone, beside its own tenant's rows, or beside a lower band, it has every step."""
    for tenant, band in (("heavy", Band.DEFAULT), ("light", Band.FLEX)):
        driver = make_driver()
        offer(driver, "row", tenant, 8, 2_000, band)
        driver.turn()
        offer(driver, "long", "heavy", 6_000)
        for _ in range(40):
            driver.turn()
        assert all(steps_with(driver, 10))


def test_policies_without_shares_know_no_rest() -> None:
    """First come, first served goes on with what came first."""
    driver = make_driver(policy="fcfs")
    begin(driver, num_steps=40)
    assert all(steps_with(driver, 10))


def test_one_long_prompt_a_step() -> None:
    """Two of them read twice as much: the second waits until the first has had its steps."""
    driver = make_driver()
    offer(driver, "one", "heavy", 2_050)
    offer(driver, "two", "other", 2_050)
    for _ in range(80):
        driver.turn()
        assert sum(s.start >= 500 for s in driver.plans[-1].slices) <= 1


def test_it_has_a_step_for_itself_where_that_is_sooner() -> None:
    """Where what it has is dear to read in large steps, no other prompt is in a step with it."""
    for is_dear in (False, True):
        line = replace(_LINE, per_prefill_context_token_s=0.0001) if is_dear else _LINE
        cost = StepCost("regimes", _LINE, line, split_num_tokens=60)
        long_prompts = LongPrompts(0.2, RunningSet(4), FairTree(FairnessConfig()), StepModel(cost))
        step = StepFeatures(50, 5, prefill_context_tokens=2_000)
        assert long_prompts.room_beside(step, 100) == (0 if is_dear else 100)


def test_a_cached_prompt_waits_for_a_step_without_others() -> None:
    """One that would be dear beside a prompt under way begins in the next step, alone."""
    dear = StepCost(
        "regimes", _LINE, replace(_LINE, per_prefill_context_token_s=0.0001), split_num_tokens=60
    )
    driver = make_driver(cost=dear, caching=True)
    offer(driver, "seed", "heavy", 2_000)
    for _ in range(40):
        driver.turn()
    offer(driver, "row", "light", 8, 2_000)
    driver.turn()
    since = len(driver.plans)
    for number in range(30):
        offer(driver, f"n{number}", "light", 60)
        if number % 5 == 0:
            driver.offer(
                fakes.make_request(
                    f"again{number}", tenant_id="heavy", max_tokens=2, ignore_eos=True,
                    prompt=[len("seed")] * 2_000 + [number] * 8, arrival_s=driver.now,
                )
            )  # fmt: skip
        driver.turn()
    carried = [plan for plan in driver.plans[since:] if _is_long(plan)]
    assert carried
    assert all(len(plan.slices) == 1 for plan in carried)


def test_it_ends_whatever_comes() -> None:
    """Newcomers in every step keep it from one in so many, and it is done all the same."""
    driver = make_driver()
    offer(driver, "long", "heavy", 2_000)
    for number in range(400):
        offer(driver, f"n{number}", f"tenant-{number}", 90)
        driver.turn()
        if driver.tokens["long"]:
            break
    assert driver.tokens["long"]
    assert number > 40


def _is_long(plan: StepPlan) -> bool:
    return any(s.start >= 500 for s in plan.slices)


def _price_s(plans: list[StepPlan]) -> float:
    return sum(COST.price_s(StepFeatures.of_plan(plan)) for plan in plans)


def test_prompts_behind_one_that_rests_are_not_weighed(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many of a tenant's are under way, a step asks for the first; another tenant's too."""
    driver = make_driver()
    begin(driver, num_steps=4)
    for number in range(6):
        offer(driver, "x" * (5 + number), "heavy", 2_000)
    offer(driver, "other", "third", 2_000)
    for _ in range(30):
        driver.turn()
    running = driver.scheduler._running
    assert len(running.prefilling) > 3, "or there is nothing to weigh"
    long_prompts, asked = driver.scheduler._composer._long_prompts, []
    rests = LongPrompts.rests

    def spy(self: LongPrompts, sequence: Sequence, *args: Any, **named: Any) -> bool:
        asked.append(sequence.request.tenant_id)
        return rests(self, sequence, *args, **named)

    monkeypatch.setattr(LongPrompts, "rests", spy)
    resting: list[str] = []
    for _ in range(20):
        asked.clear()
        driver.turn()
        if long_prompts.gone is None:
            assert len(asked) == len(set(asked))
            resting += asked
    assert set(resting) == {"heavy", "third"}, "what one tenant's does is no word of another's"
