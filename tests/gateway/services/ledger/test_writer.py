"""The writer between spool and ledger: nothing is lost, whatever fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from gateway.domain.usage import UsageRow
from gateway.errors import InternalFailure, StoreUnavailable
from gateway.services.ledger.spool import REFUSED_NAME, Spool
from gateway.services.ledger.writer import BATCH_ROWS, LedgerWriter, Pace
from tests.gateway.usage_rows import FakeLedger, usage_row

pytestmark = pytest.mark.anyio

PATIENCE_S = 30.0


class Clock:
    """Tell the time that a test says."""

    now_s = 100.0

    def time(self) -> float:
        return self.now_s

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    spool = Spool(tmp_path)
    yield spool
    spool.close()


async def test_rows_reach_the_ledger_by_themselves(spool: Spool) -> None:
    """What is appended is inserted, in order, and told to who asked to be told."""
    ledger, told = FakeLedger(), []
    rows = [usage_row() for _ in range(3)]
    async with LedgerWriter(ledger, spool, on_written=told.extend).running():
        for row in rows:
            spool.append(row)
        await _until(lambda: spool.depth == 0)
    assert ledger.rows == told == rows


async def test_the_lag_is_the_time_that_rows_have_waited(spool: Spool) -> None:
    """It grows while the store is away, whatever comes meanwhile, and is nothing afterwards."""
    ledger, clock = FakeLedger(), Clock()
    writer = LedgerWriter(ledger, spool, clock=clock, pace=Pace(gather_s=0.0))
    assert writer.lag_s == 0.0
    ledger.go_away(2)
    for _ in range(2):
        spool.append(usage_row())
        with pytest.raises(StoreUnavailable):
            await writer.round()
        clock.now_s += 10.0
    assert writer.lag_s == 20.0
    await writer.round()
    assert writer.lag_s == 0.0


async def test_many_rows_go_in_batches(spool: Spool) -> None:
    """No transaction holds more than 500 rows, and no row goes twice."""
    ledger = FakeLedger()
    rows = [usage_row() for _ in range(2 * BATCH_ROWS + 1)]
    for row in rows:
        spool.append(row)
    async with LedgerWriter(ledger, spool).running():
        await _until(lambda: spool.depth == 0)
    assert ledger.rows == rows
    assert ledger.batches == [BATCH_ROWS, BATCH_ROWS, 1]


async def test_a_flush_waits_for_what_is_there(spool: Spool) -> None:
    """After a flush the rows before it are in the ledger; without rows it is over at once."""
    ledger = FakeLedger()
    writer = LedgerWriter(ledger, spool)
    assert await writer.flush(0)
    async with writer.running():
        rows = [usage_row(), usage_row()]
        for row in rows:
            spool.append(row)
        assert await writer.flush(PATIENCE_S)
        assert ledger.rows == rows


async def test_a_flush_gives_up_in_time(spool: Spool) -> None:
    """A flush that cannot be is told as that, and the row gets there later."""
    ledger = StuckLedger()
    writer = LedgerWriter(ledger, spool)
    async with writer.running():
        spool.append(usage_row())
        assert not await writer.flush(0.01)
        ledger.free.set()
        assert await writer.flush(PATIENCE_S)


async def test_a_store_that_is_away_costs_no_row(
    spool: Spool, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows wait while it is away, a flush does not, and all are there when it is back."""
    ledger = FakeLedger()
    ledger.go_away(3)
    ledger.failures.append(RuntimeError("a bug"))
    writer = LedgerWriter(ledger, spool, pace=Pace(retry_s=(0.01, 0.02)))
    rows = [usage_row() for _ in range(4)]
    async with writer.running():
        spool.append(rows[0])
        await _until(lambda: writer.is_failing)
        assert not await writer.flush(PATIENCE_S)
        assert spool.depth == 1
        for row in rows[1:]:
            spool.append(row)
        await _until(lambda: spool.depth == 0)
        assert not writer.is_failing
    assert ledger.rows == rows
    assert "wait for the ledger" in caplog.text


async def test_what_is_left_is_inserted_on_leaving(spool: Spool) -> None:
    """Rows of the last moment are written before the store may be closed."""
    ledger = FakeLedger()
    rows = [usage_row() for _ in range(BATCH_ROWS + 1)]
    async with LedgerWriter(ledger, spool).running():
        for row in rows:
            spool.append(row)
    assert ledger.rows == rows
    assert spool.depth == 0


async def test_what_cannot_be_inserted_on_leaving_waits_for_the_next(
    spool: Spool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A process that ends while the store is away leaves its rows to the next one."""
    ledger = FakeLedger()
    ledger.go_away(1000)
    row = usage_row()
    async with LedgerWriter(ledger, spool).running():
        spool.append(row)
    assert "until the next start" in caplog.text
    spool.close()
    successor = Spool(tmp_path)
    later = FakeLedger()
    async with LedgerWriter(later, successor).running():
        await _until(lambda: successor.depth == 0)
    assert later.rows == [row]
    successor.close()


async def test_a_row_that_is_refused_blocks_no_other(
    spool: Spool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is put aside for an operator, by itself, and told in the log as an error."""
    rows = [usage_row() for _ in range(10)]
    ledger = PickyLedger({rows[3].request_id, rows[9].request_id})
    for row in rows:
        spool.append(row)
    with caplog.at_level(logging.ERROR):
        async with LedgerWriter(ledger, spool).running():
            await _until(lambda: spool.depth == 0)
    assert ledger.rows == rows[:3] + rows[4:9]
    aside = (tmp_path / REFUSED_NAME).read_text().splitlines()
    assert all(str(rows[n].request_id) in line for n, line in zip((3, 9), aside, strict=True))
    assert caplog.text.count("is not billed") == 2


async def test_a_follower_that_fails_holds_nothing_up(
    spool: Spool, caplog: pytest.LogCaptureFixture
) -> None:
    """A fault of who is told of rows is logged, and the rows are in the ledger once."""

    def fail(rows: Sequence[UsageRow]) -> None:
        raise RuntimeError("a bug")

    ledger = FakeLedger()
    rows = [usage_row(), usage_row()]
    writer = LedgerWriter(ledger, spool, on_written=fail)
    async with writer.running():
        for row in rows:
            spool.append(row)
            assert await writer.flush(PATIENCE_S)
        assert not writer.is_failing
    assert ledger.rows == rows
    assert caplog.text.count("who follows the ledger failed") == 2


async def test_rows_of_a_dead_process_are_found_while_running(spool: Spool, tmp_path: Path) -> None:
    """A gateway that lives on inserts what another one left, without a restart."""
    ledger = FakeLedger()
    dead = Spool(tmp_path)
    row = usage_row()
    dead.append(row)
    async with LedgerWriter(ledger, spool, pace=Pace(tidy_s=0.01)).running():
        await asyncio.sleep(0.05)
        assert ledger.rows == []
        dead.close()
        await _until(lambda: bool(ledger.rows))
    assert ledger.rows == [row]


class StuckLedger(FakeLedger):
    """Answer nothing until it is freed."""

    def __init__(self) -> None:
        super().__init__()
        self.free = asyncio.Event()

    async def insert(self, rows: Sequence[UsageRow]) -> int:
        await self.free.wait()
        return await super().insert(rows)


class PickyLedger(FakeLedger):
    """Refuse every batch that holds one of some requests."""

    def __init__(self, refused: set[object]) -> None:
        super().__init__()
        self._refused = refused

    async def insert(self, rows: Sequence[UsageRow]) -> int:
        if any(row.request_id in self._refused for row in rows):
            raise InternalFailure(detail="a row breaks a rule")
        return await super().insert(rows)


async def _until(condition) -> None:  # type: ignore[no-untyped-def]
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.005)
