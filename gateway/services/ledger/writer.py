"""The task that moves rows from the spool into the ledger.

It gathers for a fifth of a second, because a transaction costs more than a hundred rows, then
inserts up to 500 rows in one; so a row is in the ledger within half a second, and where rows pile
up there are at most 20 transactions a second. While the store does not answer the rows wait in the
spool, and it is asked again after 0.5 s, then ever more seldom, at least every 2 s.

A row is confirmed after its transaction has committed, and no earlier: what fails in between is
inserted again, which the ledger takes for nothing. A row that the ledger refuses for what it holds
is put aside, so that those behind it get through.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

from gateway.background import Background
from gateway.domain.usage import UsageRow
from gateway.errors import InternalFailure
from gateway.ports import Clock, LedgerStore
from gateway.services.ledger.spool import Spool

logger = logging.getLogger(__name__)

BATCH_ROWS: Final = 500
_LAST_DRAIN_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Pace:
    """Say how long rows are gathered for, and what lies between two transactions.

    `retry_s` are the waits after failures in a row; the spool is tidied every `tidy_s`.
    """

    gather_s: float = 0.2
    pause_s: float = 0.05
    retry_s: Sequence[float] = (0.5, 1.0, 2.0)
    tidy_s: float = 5.0


class LedgerWriter:
    """Insert what the spool holds while `running` is entered; `on_written` sees each batch."""

    def __init__(
        self,
        ledger: LedgerStore,
        spool: Spool,
        *,
        on_written: Callable[[Sequence[UsageRow]], None] | None = None,
        clock: Clock = time,
        pace: Pace = Pace(),
    ) -> None:
        self._ledger = ledger
        self._spool = spool
        self._on_written = on_written
        self._clock = clock
        self._pace = pace
        self._hurry = asyncio.Event()
        self._progress = asyncio.Condition()
        self._is_failing = False
        self._tidied_s = clock.monotonic()
        self._behind_since_s: float | None = None

    @property
    def is_failing(self) -> bool:
        """Tell whether the last attempt to insert failed, so that rows wait in the spool."""
        return self._is_failing

    @property
    def lag_s(self) -> float:
        """Say for how long there have been rows that wait; 0: all are in the ledger."""
        since_s = self._behind_since_s
        return 0.0 if since_s is None else self._clock.monotonic() - since_s

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the task; on leaving, insert what is left if that goes quickly."""
        try:
            async with Background(
                "writing the ledger",
                self.round,
                interval_s=self._pace.pause_s,
                at_once=True,
                retry_s=self._pace.retry_s,
            ):
                yield
        finally:
            await self._drain()

    async def flush(self, timeout_s: float) -> bool:
        """Wait until all rows of this moment are in the ledger.

        False: they were not in time, or the store fails, which is not waited for.
        """
        goal = self._spool.num_appended
        if self._spool.num_through >= goal:
            return True
        if self.is_failing:
            return False
        self._hurry.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._progress:
                await self._progress.wait_for(
                    lambda: self.is_failing or self._spool.num_through >= goal
                )
        return self._spool.num_through >= goal

    async def round(self) -> None:
        """Wait for rows, for a while, and insert a batch. Raises: `StoreUnavailable`."""
        await self._gather()
        try:
            await self._write_batch()
            self._is_failing = False
            if not self._spool.depth:
                self._behind_since_s = None
        except Exception:
            self._is_failing = True
            logger.warning("%d rows wait for the ledger", self._spool.depth)
            raise
        finally:
            async with self._progress:
                self._progress.notify_all()

    async def _gather(self) -> None:
        """Wait for rows, then for more of them; tidy the spool meanwhile."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pace.tidy_s):
                await self._spool.arrived.wait()
        if self._spool.depth and self._behind_since_s is None:
            self._behind_since_s = self._clock.monotonic()
        if 0 < self._spool.depth < BATCH_ROWS:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pace.gather_s):
                    await self._hurry.wait()
        self._hurry.clear()
        now = self._clock.monotonic()
        if now - self._tidied_s >= self._pace.tidy_s:
            self._tidied_s = now
            self._spool.tidy()

    async def _write_batch(self) -> int:
        rows = self._spool.pending(BATCH_ROWS)
        if rows:
            await self._insert(rows)
            self._spool.confirm(len(rows))
            self._tell(rows)
        return len(rows)

    def _tell(self, rows: Sequence[UsageRow]) -> None:
        if self._on_written is None:
            return
        try:
            self._on_written(rows)
        except Exception:
            # The rows are in the ledger: nothing here is to be done again.
            logger.exception("who follows the ledger failed")

    async def _insert(self, rows: Sequence[UsageRow]) -> None:
        """Insert rows; where one is refused, halve until it stands alone, and put it aside."""
        try:
            await self._ledger.insert(rows)
        except InternalFailure as exc:
            if len(rows) > 1:
                middle = len(rows) // 2
                await self._insert(rows[:middle])
                await self._insert(rows[middle:])
                return
            self._spool.put_aside(rows[0])
            logger.error("request %s is not billed: %s", rows[0].request_id, exc)

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(_LAST_DRAIN_S):
                while await self._write_batch():
                    pass
        except Exception as exc:
            logger.warning(
                "%d rows wait for the ledger until the next start: %r", self._spool.depth, exc
            )
