"""How much is sent back for a higher band that waits: as much as it needs, and no more."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

import fakes
from fakes import Driver
from scheduler.config import PRESETS
from scheduler.core import Scheduler
from scheduler.request import Band


def make_driver(*, prefix_caching: bool = False, max_model_len: int = 64) -> Driver:
    """Have 41 blocks of eight tokens, and nothing kept for what rows may grow by."""
    driver = Driver(
        fakes.make_engine(
            block_size=8, num_blocks=41, max_num_seqs=16, max_num_batched_tokens=512,
            max_model_len=max_model_len,
        )
    )  # fmt: skip
    mixed = PRESETS["mixed"]
    config = replace(
        mixed,
        composer=replace(mixed.composer, kv_reserve="prompt"),
        preemption=replace(mixed.preemption, min_run_steps=1),
        prefix_caching=prefix_caching,
    )
    driver.scheduler = Scheduler(driver.engine.info, config)
    return driver


def full_of(band: Band) -> Driver:
    """Fill all blocks but one with eight rows of five blocks each."""
    driver = make_driver()
    offer(driver, "low", 8, band)
    driver.turn()
    driver.turn()
    assert driver.scheduler.snapshot().free_blocks == 1
    return driver


def offer(
    driver: Driver, name: str, num_requests: int, band: Band, *, num_tokens: int = 33
) -> None:
    for number in range(num_requests):
        driver.offer(
            fakes.make_request(
                f"{name}{number}",
                prompt=[number] * num_tokens,
                tenant_id=name,
                band=band,
                ignore_eos=True,
            )
        )


@pytest.mark.parametrize("num_requests", [1, 2, 4])
def test_as_many_rows_go_as_those_that_wait_need(num_requests: int) -> None:
    """For each request of a higher band one row of the same size goes, and it starts at once."""
    driver = full_of(Band.FLEX)
    offer(driver, "high", num_requests, Band.DEFAULT)
    driver.turn()
    plan = driver.plans[-1]
    assert len(plan.preempted) == num_requests
    assert [new.request_id for new in plan.admitted] == [f"high{n}" for n in range(num_requests)]


def test_what_goes_is_enough_to_let_it_in() -> None:
    """One that needs six blocks, where one stays in reserve, has the seven of two rows."""
    driver = full_of(Band.FLEX)
    offer(driver, "high", 1, Band.DEFAULT, num_tokens=41)
    driver.turn()
    plan = driver.plans[-1]
    assert (plan.preempted, len(plan.admitted)) == (["low7", "low6"], 1)


def test_nobody_is_displaced_in_a_step_whose_rows_lack_blocks() -> None:
    """What rows give for others of their own is not given again to who waits above them."""
    driver = make_driver(max_model_len=400)
    for number in range(8):
        low = fakes.make_request(
            f"low{number}", prompt=[number] * 33, max_tokens=60, band=Band.FLEX, ignore_eos=True
        )
        driver.offer(low)
    for _ in range(8):
        driver.turn()
    offer(driver, "high", 1, Band.DEFAULT, num_tokens=100)
    driver.turn()
    driver.turn()
    gone = [plan.preempted for plan in driver.plans[-3:]]
    assert gone == [[], ["low7", "low6"], ["low5", "low4"]]


def test_what_is_found_of_it_is_to_be_free_as_well() -> None:
    """Of nine blocks that a prompt needs four are in the cache: they are four of six free ones."""
    driver = make_driver(prefix_caching=True)
    prompt = [40] * 56
    driver.offer(fakes.make_request("before", prompt=prompt[:33], max_tokens=1))
    driver.turn()
    offer(driver, "low", 7, Band.FLEX)
    driver.turn()
    driver.turn()
    assert driver.scheduler.snapshot().free_blocks == 6
    driver.offer(fakes.make_request("high", prompt=prompt))
    driver.turn()
    plan = driver.plans[-1]
    assert (plan.preempted, [new.request_id for new in plan.admitted]) == (["low6"], ["high"])
    assert driver.last["high"].num_cached_tokens == 32


def test_nobody_goes_for_blocks_that_another_keeps() -> None:
    """What lower rows share with one that stays is not free once they have gone."""
    driver = make_driver(prefix_caching=True, max_model_len=400)
    for name, band in (("stays", Band.DEFAULT), *((f"low{n}", Band.FLEX) for n in range(7))):
        driver.offer(
            fakes.make_request(name, prompt=[1] * 33, max_tokens=40, band=band, ignore_eos=True)
        )
        driver.turn()
    driver.turn()
    assert driver.scheduler.snapshot().free_blocks > 25
    driver.offer(fakes.make_request("high", prompt=[2] * 296, max_tokens=8))
    for _ in range(3):
        driver.turn()
        assert not driver.plans[-1].preempted


def test_who_is_sent_back_and_let_in_again_shows_only_what_was_computed_anew() -> None:
    """With a chunk in flight a prompt loses its slot and has another one in the same plan.

    What that chunk filled is gone, and blocks of the new table are not found before a step has
    filled them.
    """
    driver = Driver(
        fakes.make_engine(
            block_size=8,
            num_blocks=200,
            max_num_seqs=8,
            max_model_len=600,
            max_num_batched_tokens=64,
            depth=2,
        )
    )
    mixed = PRESETS["mixed"]
    composer = replace(mixed.composer, batch_kv_headroom=0.0)
    driver.scheduler = Scheduler(driver.engine.info, replace(mixed, composer=composer))
    batch = partial(fakes.make_request, max_tokens=60, band=Band.BATCH, ignore_eos=True)
    for number in range(6):
        driver.offer(batch(f"row{number}", finish_by_s=9e9))
    for _ in range(4):
        driver.turn()
    driver.offer(batch("long", prompt=[1, 2] * 200, salt=b"l", finish_by_s=8e9))
    driver.turn()
    driver.offer(fakes.make_request("one", prompt=[3] * 3, max_tokens=60, ignore_eos=True))
    for _ in range(3):
        driver.turn()
    for number in range(4):
        prompt = [*[4] * 9, number]
        driver.offer(fakes.make_request(f"same{number}", prompt=prompt, tenant_id="same"))
    driver.turn()
    plan = driver.plans[-1]
    assert "long" in plan.preempted
    assert "long" in [new.request_id for new in plan.admitted]
    sequence = driver.scheduler._lifecycle.find("long")
    assert sequence is not None
    launched = [
        (chunk.start, chunk.n_tokens) for chunk in plan.slices if chunk.slot == sequence.slot
    ]
    assert sequence.table.num_published * 8 <= launched[0][0]
