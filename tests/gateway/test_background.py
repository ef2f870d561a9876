"""Work that is done again and again: it goes on after faults, wakes early, ends with its block."""

from __future__ import annotations

import asyncio
import logging

import pytest

from gateway.background import Background
from gateway.errors import CountersUnavailable, StoreUnavailable

pytestmark = pytest.mark.anyio

NEVER_S = 3600.0


class Work:
    """Count rounds; the first of them may fail, and one may be held up."""

    def __init__(self, *faults: Exception) -> None:
        self.num_rounds = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.was_cancelled = False
        self._faults = list(faults)
        self._counted = asyncio.Condition()

    async def round(self) -> None:
        async with self._counted:
            self.num_rounds += 1
            self._counted.notify_all()
        if self._faults:
            raise self._faults.pop(0)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise

    async def seen(self, num_rounds: int) -> None:
        """Wait until so many rounds have begun."""
        async with asyncio.timeout(30), self._counted:
            await self._counted.wait_for(lambda: self.num_rounds >= num_rounds)


async def test_rounds_follow_each_other_while_the_block_runs() -> None:
    """As many as time allows, and none once it is left."""
    work = Work()
    async with Background("it", work.round, interval_s=0.0):
        await work.seen(3)
    num_rounds = work.num_rounds
    await asyncio.sleep(0)
    assert work.num_rounds == num_rounds


async def test_the_first_round_waits_unless_it_is_to_come_at_once() -> None:
    """Who has just begun by itself need not do the same again."""
    waiting, eager = Work(), Work()
    async with (
        Background("it", waiting.round, interval_s=NEVER_S),
        Background("it", eager.round, interval_s=NEVER_S, at_once=True),
    ):
        await eager.seen(1)
    assert waiting.num_rounds == 0


@pytest.mark.parametrize("interval_s", [NEVER_S, None])
async def test_an_event_wakes_it_early(interval_s: float | None) -> None:
    """Each time that it is set, with an interval or with none; a round clears it."""
    work, wake = Work(), asyncio.Event()
    async with Background("it", work.round, interval_s=interval_s, wake=wake):
        for num_rounds in (1, 2):
            wake.set()
            await work.seen(num_rounds)
            assert not wake.is_set()


async def test_a_fault_is_logged_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """With its traceback, as it is ours to mend."""
    work = Work(RuntimeError("a bug"))
    async with Background("the work", work.round, interval_s=0.0):
        await work.seen(2)
    assert "the work failed" in caplog.text
    assert "Traceback" in caplog.text


@pytest.mark.parametrize("away", [StoreUnavailable, CountersUnavailable])
async def test_an_outage_is_a_line_in_the_log(
    away: type[StoreUnavailable], caplog: pytest.LogCaptureFixture
) -> None:
    """Without a traceback, at the level that was asked for, and the work goes on."""
    work = Work(away())
    with caplog.at_level(logging.INFO):
        async with Background("the work", work.round, interval_s=0.0, level=logging.INFO):
            await work.seen(2)
    [record] = caplog.records
    assert record.levelno == logging.INFO
    assert record.exc_info is None
    assert "the work put off" in record.getMessage()


async def test_what_counts_as_an_outage_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Work that meets no store may meet a disk."""
    work = Work(OSError("the disk is full"))
    await Background("the work", work.round, interval_s=NEVER_S, outages=(OSError,)).round()
    assert "the work put off: the disk is full" in caplog.text
    assert "Traceback" not in caplog.text


async def test_after_a_failure_no_event_wakes_it_before_its_time() -> None:
    """What is away is asked again when `retry_s` says, however much comes in meanwhile."""
    wake = asyncio.Event()
    work = Work(StoreUnavailable(), StoreUnavailable())
    async with Background("it", work.round, interval_s=None, wake=wake, retry_s=(0.0, NEVER_S)):
        wake.set()
        await work.seen(2)
        for _ in range(10):
            wake.set()
            await asyncio.sleep(0)
    assert work.num_rounds == 2


async def test_leaving_waits_for_the_round_that_it_cancels() -> None:
    """Nothing of it is left running once the block is over."""
    work = Work()
    work.gate.clear()
    async with Background("it", work.round, interval_s=NEVER_S, at_once=True):
        await work.seen(1)
    assert work.was_cancelled


async def test_a_round_can_be_driven_by_hand() -> None:
    """Without a task and without a wait, faults included."""
    work = Work(RuntimeError("a bug"))
    background = Background("it", work.round, interval_s=NEVER_S)
    for _ in range(3):
        await background.round()
    assert work.num_rounds == 3


async def test_work_that_takes_its_cancellation_for_a_fault_ends_with_its_block() -> None:
    """A round in which a client swallows the cancellation is the last one."""
    work = Work()
    work.gate.clear()

    async def swallow() -> None:
        try:
            await work.round()
        except asyncio.CancelledError:
            raise CountersUnavailable from None

    async with asyncio.timeout(10), Background("it", swallow, interval_s=NEVER_S, at_once=True):
        await work.seen(1)
    assert work.was_cancelled
    assert work.num_rounds == 1
