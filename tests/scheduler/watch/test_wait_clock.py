"""The one clock for all who wait."""

from __future__ import annotations

from scheduler.facts import WaitCause
from scheduler.watch.wait_clock import CAUSES, WaitClock


def read(clock: WaitClock, now: float, *, is_batch: bool = False) -> dict[WaitCause, float]:
    sums = clock.read(now, is_batch=is_batch)
    return {cause: s for cause, s in zip(CAUSES, sums, strict=True) if s}


def test_what_a_plan_says_holds_until_the_next() -> None:
    """Time is added to what the latest plan was stopped by, for each kind of work its own."""
    clock = WaitClock()
    clock.note(10.0, WaitCause.SLOTS, WaitCause.BATCH)
    clock.note(11.0, WaitCause.BLOCKS, WaitCause.BATCH)
    assert read(clock, 13.0) == {WaitCause.SLOTS: 1.0, WaitCause.BLOCKS: 2.0}
    assert read(clock, 13.0, is_batch=True) == {WaitCause.BATCH: 3.0}


def test_time_does_not_go_back() -> None:
    """A reading of an earlier time changes nothing, so sums never fall."""
    clock = WaitClock()
    clock.note(10.0, WaitCause.SLOTS, WaitCause.SLOTS)
    before = clock.read(12.0, is_batch=False)
    assert clock.read(11.0, is_batch=False) == before
    assert read(clock, 13.0) == {WaitCause.SLOTS: 3.0}


def test_all_causes_but_a_requests_own_have_a_sum() -> None:
    """Being held is of one request alone; everything else is on the clock."""
    assert {*CAUSES} == {*WaitCause} - {WaitCause.HELD}
