"""What the last output of a request says was done of its prompt, however it ended."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest

import fakes
from engine.contract import StepResult
from fakes import Driver
from scheduler.request import Band, FinishReason, RequestOutput

CHUNK = 20
PROMPT = range(50)
OTHER = range(100, 150)


def driver_of(**engine: int) -> Driver:
    return Driver(fakes.make_engine(max_num_batched_tokens=CHUNK, **engine))


def turns(driver: Driver, count: int) -> None:
    for _ in range(count):
        driver.turn()


def cancelled(driver: Driver, request_id: str = "r") -> RequestOutput:
    output = driver.scheduler.cancel(request_id, driver.now)
    assert output is not None
    return output


def prefilled(output: RequestOutput) -> tuple[int, int]:
    """Return how much of the prompt was computed or found, and what of it was found."""
    return output.num_prefilled_tokens, output.num_cached_tokens


def test_cancelled_while_it_waits_it_had_nothing() -> None:
    """A request that was never admitted has computed nothing."""
    driver = driver_of()
    driver.offer(fakes.make_request(prompt=PROMPT))
    assert prefilled(cancelled(driver)) == (0, 0)


@pytest.mark.parametrize("depth", [1, 2])
def test_cancelled_in_its_prompt_it_had_what_was_launched(depth: int) -> None:
    """A step that was launched is computed, whether it has come back or not."""
    driver = driver_of(depth=depth)
    driver.offer(fakes.make_request(prompt=PROMPT))
    turns(driver, 1)
    plan = driver.scheduler.plan(driver.now)
    assert plan is not None
    assert prefilled(cancelled(driver)) == (2 * CHUNK, 0)


def test_what_was_found_counts_and_is_told_apart() -> None:
    """Twelve tokens are in the cache, twenty are computed, the rest never was."""
    driver = driver_of()
    driver.offer(fakes.make_request("before", prompt=range(13), max_tokens=1))
    driver.run()
    driver.offer(fakes.make_request(prompt=PROMPT))
    turns(driver, 1)
    assert prefilled(cancelled(driver)) == (12 + CHUNK, 12)


@pytest.mark.parametrize("depth", [1, 2])
def test_with_a_token_all_of_it_was_done(depth: int) -> None:
    """However it ends after that; a token that has not landed changes nothing."""
    driver = driver_of(depth=depth)
    driver.offer(fakes.make_request(prompt=PROMPT, max_tokens=3))
    turns(driver, 4)
    assert prefilled(cancelled(driver)) == (50, 0)
    driver.offer(fakes.make_request("whole", prompt=range(1, 30), max_tokens=2))
    driver.run()
    assert prefilled(driver.last["whole"]) == (29, 0)


def displaced(driver: Driver, *, expires_s: float | None = None) -> None:
    """Compute most of a prompt and have its only slot taken by a higher band."""
    low = fakes.make_request(prompt=PROMPT, band=Band.BATCH, expires_s=expires_s)
    driver.offer(low)
    turns(driver, 2)
    driver.offer(fakes.make_request("urgent", prompt=OTHER, band=Band.PRIORITY, salt=b"other"))
    turns(driver, 1)
    assert driver.plans[-1].preempted == ["r"]


def test_a_preemption_takes_nothing_from_it() -> None:
    """What it had computed before it was sent back was computed."""
    driver = driver_of(max_num_seqs=1)
    displaced(driver)
    assert prefilled(cancelled(driver)) == (2 * CHUNK, 0)


def test_what_is_computed_again_counts_once() -> None:
    """Most of a prompt, whose blocks went to another, and then a part of it all over again."""
    driver = driver_of(max_num_seqs=1, num_blocks=14)
    displaced(driver)
    cancelled(driver, "urgent")
    turns(driver, 1)
    [again] = driver.plans[-1].slices
    assert again.start + again.n_tokens < 2 * CHUNK, "it was to lose its blocks"
    assert prefilled(cancelled(driver)) == (2 * CHUNK, 0)


def test_expired_it_had_what_was_computed_before() -> None:
    """A request that is sent back and then runs out of time does not lose its work."""
    driver = driver_of(max_num_seqs=1)
    before = driver.scheduler.config
    drops = replace(before, admission=replace(before.admission, drop_expired=True))
    driver.scheduler.configure(drops, driver.now)
    displaced(driver, expires_s=30.0)
    driver.now = 30.0
    driver.turn()
    [output] = driver.scheduler.take_expired()
    assert output.finish_reason is FinishReason.EXPIRED
    assert prefilled(output) == (2 * CHUNK, 0)


def test_a_row_that_the_engine_failed_had_nothing() -> None:
    """What a fault has taken is as if it had never been computed."""
    driver = driver_of()
    driver.offer(fakes.make_request(prompt=PROMPT))
    turns(driver, 1)
    plan = driver.scheduler.plan(driver.now)
    assert plan is not None
    driver.engine.collect(driver.engine.launch(plan))
    failed = StepResult(plan.step_id, array("i"), array("i"), 1.0, {plan.slices[0].slot: "broke"})
    [output] = driver.scheduler.report(failed, driver.now)
    assert output.finish_reason is FinishReason.ERROR
    assert output.num_prefilled_tokens == 0


@pytest.mark.parametrize("lacks_memory", [False, True])
def test_who_outlives_a_fault_begins_anew(lacks_memory: bool) -> None:
    """What a fault of others' step took is not counted either, until it is computed again."""
    driver = driver_of()
    driver.offer(fakes.make_request(prompt=PROMPT))
    turns(driver, 1)
    driver.offer(fakes.make_request("urgent", prompt=OTHER, band=Band.PRIORITY, salt=b"other"))
    plan = driver.scheduler.plan(driver.now)
    assert plan is not None
    assert [new.request_id for new in plan.admitted] == ["urgent"]
    if lacks_memory:
        assert driver.lack_memory(plan.step_id)
        assert prefilled(cancelled(driver, "urgent")) == (0, 0)
    else:
        driver.fail(plan.step_id)
        assert driver.last["urgent"].num_prefilled_tokens == 0
    chunk = driver.scheduler.snapshot().max_step_tokens
    turns(driver, 1)
    assert prefilled(cancelled(driver)) == (chunk, 0)
