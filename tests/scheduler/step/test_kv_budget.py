"""Whether a request fits the KV cache beside those that run, and what it leaves."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest

import fakes
from engine.contract import TokenLogprobs
from engine.scored import ScoredPrompt
from engine.step_cost import LinearCost, StepCost
from fakes import Driver
from scheduler.config import PRESETS
from scheduler.core import Scheduler
from scheduler.learn import StepModel
from scheduler.request import Band


def test_batch_work_leaves_blocks_for_who_comes() -> None:
    """Of a hundred blocks it leaves the fifth that is kept, and the eighth that is for shares."""
    driver = Driver(
        fakes.make_engine(
            block_size=8, num_blocks=100, max_num_seqs=64, max_num_batched_tokens=1_024
        )
    )
    mixed = PRESETS["mixed"]
    composer = replace(mixed.composer, kv_reserve="prompt", batch_kv_headroom=0.2)
    config = replace(mixed, composer=composer, prefix_caching=False)
    line = LinearCost(intercept_s=0.001, per_token_s=0.0)
    model = StepModel(StepCost("flat", line, line))
    driver.scheduler = Scheduler(driver.engine.info, config, step_model=model)
    driver.offer(fakes.make_request("online", prompt=[1] * 4, max_tokens=40, ignore_eos=True))
    for number in range(40):
        driver.offer(
            fakes.make_request(
                f"b{number}", prompt=[2] * 17, max_tokens=40, band=Band.BATCH, ignore_eos=True
            )
        )
    least = min(driver.scheduler.snapshot().free_blocks for _ in range(6) if driver.turn())
    assert 32 <= least < 32 + 3


def test_what_is_expected_of_a_request_grows_with_what_it_has_drawn() -> None:
    """One that was sent back and has drawn more since is reckoned anew, the last asked or not."""
    driver = Driver(fakes.make_engine(max_model_len=512, num_blocks=400))
    driver.scheduler = Scheduler(driver.engine.info, PRESETS["mixed"])
    budget = driver.scheduler._composer._kv_budget
    driver.offer(fakes.make_request(prompt=[1] * 10, max_tokens=100, ignore_eos=True))
    sequence = driver.scheduler._lifecycle.find("r")
    assert sequence is not None
    before = budget.expected_len(sequence)
    assert budget.expected_len(sequence) == before < 80.0
    sequence.token_ids.extend([0] * 80)
    assert 90.0 < budget.expected_len(sequence) <= 110.0


def test_who_did_not_fit_is_looked_at_again_once_a_row_goes_or_a_step_begins() -> None:
    """That a request did not fit holds for the rows and for the step that it was found in."""
    driver = Driver(fakes.make_engine(block_size=8, num_blocks=10, max_model_len=64))
    mixed = PRESETS["mixed"]
    composer = replace(mixed.composer, kv_reserve="prompt")
    config = replace(mixed, composer=composer, prefix_caching=False)
    driver.scheduler = Scheduler(driver.engine.info, config)
    budget, find = driver.scheduler._composer._kv_budget, driver.scheduler._lifecycle.find
    driver.offer(fakes.make_request("runs", prompt=[1] * 33, max_tokens=8))
    driver.turn()
    driver.offer(fakes.make_request("waits", prompt=[2] * 38, max_tokens=8))
    waits = find("waits")
    assert waits is not None
    budget.begin(driver.now)
    assert budget.fit(waits) is None
    # As if there were room: who asks again in the same step is not looked at.
    waits.num_tokens = 1
    assert budget.fit(waits) is None
    budget.begin(driver.now)
    assert budget.fit(waits) == []
    waits.num_tokens = 38
    assert budget.fit(waits) is None
    driver.scheduler.cancel("runs", driver.now)
    assert budget.fit(waits) == []


@pytest.mark.parametrize("is_pinned", [False, True])
def test_what_lower_rows_are_to_grow_by_keeps_nobody_above_out(is_pinned: bool) -> None:
    """A request above rows that are to fill the cache runs at once, and nobody goes for it.

    Where those rows are not to be sent back any more, it waits for what they will need.
    """
    driver = Driver(
        fakes.make_engine(
            block_size=8,
            num_blocks=100,
            max_num_seqs=16,
            max_model_len=256,
            max_num_batched_tokens=256,
        )
    )
    mixed = PRESETS["mixed"]
    config = replace(
        mixed,
        composer=replace(mixed.composer, kv_reserve="max"),
        preemption=replace(mixed.preemption, max_preemptions=0 if is_pinned else 3),
        prefix_caching=False,
    )
    driver.scheduler = Scheduler(driver.engine.info, config)
    for number in range(12):
        driver.offer(fakes.make_request(f"low{number}", max_tokens=200, ignore_eos=True))
    driver.turn()
    assert driver.scheduler.snapshot().queued
    high = fakes.make_request(
        "high", prompt=[1] * 8, max_tokens=200, tenant_id="other", band=Band.PRIORITY
    )
    driver.offer(high)
    driver.turn()
    plan = driver.plans[-1]
    assert not plan.preempted
    assert [new.request_id for new in plan.admitted] == ([] if is_pinned else ["high"])


def test_of_a_prompt_that_is_scored_no_more_is_found_than_has_its_scores() -> None:
    """Whoever computed it before: the logits of a token score the next one, and are not kept."""
    driver = Driver(fakes.make_engine(block_size=4, num_blocks=32))
    driver.offer(fakes.make_request("before", prompt=[1] * 20, max_tokens=1))
    driver.run()
    driver.offer(fakes.make_request("scored", prompt=[1] * 20, max_tokens=1))
    sequence = driver.scheduler._lifecycle.find("scored")
    assert sequence is not None
    budget = driver.scheduler._composer._kv_budget
    assert len(budget.find(sequence)) == 4
    sequence.prompt_logprobs = known = ScoredPrompt()
    score = TokenLogprobs(1, -1.0, 1, array("i"), array("f"))
    for num_known, num_blocks in ((1, 0), (4, 0), (5, 1), (8, 1), (9, 2)):
        known.extend([score] * (num_known - len(known)))
        assert len(budget.find(sequence)) == num_blocks
