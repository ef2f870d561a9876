"""What a scheduler counts: steps, refusals, preemptions, blocks, bands."""

from __future__ import annotations

import pytest

import fakes
from engine.step_cost import StepFeatures
from fakes import Driver
from scheduler.config import PRESETS
from scheduler.core import Scheduler
from scheduler.facts import PreemptionCause
from scheduler.request import Band, Reject


def test_steps_are_counted_by_rows_and_tokens() -> None:
    """A prompt of three tokens and three more steps are four steps of one row and six tokens."""
    driver = Driver(fakes.make_engine())
    driver.offer(fakes.make_request(max_tokens=4))
    driver.run()
    counts = driver.scheduler.counts()
    assert counts.num_steps == 4
    assert (counts.rows.total, counts.tokens.total, counts.seconds.total) == (4, 6, 4.0)
    assert (counts.num_prefill_tokens, counts.num_decode_tokens) == (3, 3)
    assert counts.num_output_tokens == 4


def test_what_the_prefix_cache_held_is_counted_as_requests_begin() -> None:
    """Prompts count once their requests have a slot, before they end, and what was found of them.

    A preemption counts nothing again.
    """
    driver = Driver(fakes.make_engine(num_blocks=6, max_num_seqs=2))
    driver.offer(fakes.make_request("old", prompt=range(4), max_tokens=12, salt=b"1"))
    driver.offer(fakes.make_request("young", prompt=range(5), max_tokens=12, salt=b"2"))
    driver.turn()
    assert driver.scheduler.counts().num_prompt_tokens == 9
    driver.run()
    counts = driver.scheduler.counts()
    assert counts.preemptions[PreemptionCause.BLOCKS] == 1
    assert (counts.num_prompt_tokens, counts.num_cached_tokens) == (9, 0)
    driver.offer(fakes.make_request("again", prompt=range(5), max_tokens=2, salt=b"2"))
    driver.turn()
    counts = driver.scheduler.counts()
    assert (counts.num_prompt_tokens, counts.num_cached_tokens) == (14, 4)


def test_blocks_that_two_tables_have_are_shared() -> None:
    """Blocks are shared as long as two use them, and evicted where they might have been found."""
    driver = Driver(fakes.make_engine(num_blocks=8))
    driver.offer(fakes.make_request("a", prompt=range(9), max_tokens=9))
    driver.turn()
    driver.offer(fakes.make_request("b", prompt=range(9), max_tokens=2))
    driver.turn()
    counts = driver.scheduler.counts()
    assert (counts.shared_blocks, counts.used_blocks) == (2, 4)
    driver.run()
    counts = driver.scheduler.counts()
    assert (counts.shared_blocks, counts.used_blocks, counts.num_evicted_blocks) == (0, 0, 0)
    num_cached = counts.cached_blocks
    driver.offer(fakes.make_request("other", prompt=range(28), max_tokens=1, salt=b"2"))
    driver.run()
    assert driver.scheduler.counts().num_evicted_blocks == num_cached - 1


def test_preemptions_by_a_fault_are_counted_apart() -> None:
    """Rows that begin again after a step that found no memory are counted with their cause."""
    driver = Driver(fakes.make_engine())
    driver.offer(fakes.make_request("a", prompt=range(9), max_tokens=6))
    driver.turn()
    driver.offer(fakes.make_request("b", prompt=range(9), max_tokens=6))
    driver.turn()
    assert driver.scheduler.counts().shared_blocks == 2
    plan = driver.scheduler.plan(driver.now)
    assert plan is not None
    assert driver.lack_memory(plan.step_id)
    assert driver.scheduler.counts().shared_blocks == 0
    preemptions = driver.scheduler.counts().preemptions
    assert {cause: n for cause, n in preemptions.items() if n} == {PreemptionCause.FAULT: 2}


def test_refusals_are_counted_by_cause() -> None:
    """A prompt that is too long and a full queue are counted apart."""
    driver = Driver(fakes.make_engine(), max_num_queued=1)
    driver.offer(fakes.make_request("a"))
    assert isinstance(driver.offer(fakes.make_request("b")), Reject)
    assert isinstance(driver.offer(fakes.make_request("c", max_tokens=600)), Reject)
    assert sorted(driver.scheduler.counts().refusals.values()) == [1, 1]
    assert driver.scheduler.counts().refusals["too_long"] == 1


def test_bands_say_who_waits_and_who_runs() -> None:
    """Every band has its counts, those that nobody has used too."""
    driver = Driver(fakes.make_engine(max_num_seqs=1))
    driver.scheduler = Scheduler(driver.engine.info, PRESETS["mixed"])
    for name, band in (("a", Band.PRIORITY), ("b", Band.DEFAULT), ("c", Band.BATCH)):
        driver.offer(fakes.make_request(name, band=band, salt=name.encode()))
    driver.turn()
    counts = driver.scheduler.counts()
    assert {b.band: (b.queued, b.running) for b in counts.bands} == {
        Band.PRIORITY: (0, 1),
        Band.DEFAULT: (1, 0),
        Band.FLEX: (0, 0),
        Band.DUE: (0, 0),
        Band.BATCH: (1, 0),
    }
    assert (counts.num_prefilling, counts.num_decoding, counts.max_rows) == (0, 1, 1)


def test_how_far_off_predictions_are_is_known() -> None:
    """On a machine that is twice as slow as it was, steps take longer than predicted."""
    driver = Driver(fakes.make_engine())
    driver.offer(fakes.make_request(max_tokens=30))
    driver.run()
    assert driver.scheduler.counts().step_error == pytest.approx(0.0, abs=0.05)
    before = driver.scheduler.counts().step_bias
    for _ in range(4):
        driver.scheduler.step_model.observe(StepFeatures(num_decode_tokens=1), 2.0)
    counts = driver.scheduler.counts()
    assert counts.step_bias < before
    assert counts.step_error > 0.005
