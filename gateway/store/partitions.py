"""The days of the ledger: a partition each, made a week ahead, and dropped when they are old.

A partition is made as a table of its own and then attached, which no insert into another day has
to wait for. The default partition takes what comes on a day that has none; such a day stays
there, as its partition would contradict the rows.

The server is not the owner of the ledger, so two functions of the owner's make and drop days for it
(revision 0007). Gateways that start together make each day once, under the advisory lock of the
migrations. No failure here stops a start or a row: the next round, within the hour, tries again.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.background import JITTER, Background
from gateway.ports import Clock
from gateway.store.database import Database
from gateway.store.migrate import take_advisory_lock
from gateway.store.pools import Purpose

logger = logging.getLogger(__name__)

DAYS_BEHIND, DAYS_AHEAD = 1, 7
INTERVAL_S: Final = 3600.0
_LOCK_TIMEOUT_S: Final = 2
_NAME: Final = re.compile(r"usage_events_(\d{8})")

_PRESENT = text(
    "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid "
    "WHERE i.inhparent = 'usage_events'::regclass"
)
_MAKE = text("SELECT make_ledger_day(:day)")
_DROP = text("SELECT drop_ledger_day(:oldest)")
_DELETE = text(
    "DELETE FROM usage_events WHERE (request_id, at) IN ("
    "SELECT request_id, at FROM usage_events WHERE at < :oldest LIMIT :num_rows)"
)
_DELETED_ROWS: Final = 1000


class Partitions:
    """Keep the days of the ledger; `keep_days` of None drops none."""

    def __init__(
        self,
        database: Database,
        *,
        keep_days: int | None = None,
        clock: Clock = time,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._database = database
        self._interval_s = interval_s
        self._keep_days = keep_days
        self._clock = clock

    def running(self) -> Background:
        """Look after the days once an hour while the block runs."""
        return Background(
            "looking after the days of the ledger",
            self.look_after,
            interval_s=self._interval_s,
            jitter=JITTER,
        )

    async def look_after(self) -> None:
        """Make and drop what is due; what fails is logged and left for the next round."""
        try:
            await self.ensure()
            if self._keep_days is not None:
                for name in await self.drop_older(self._keep_days):
                    logger.info("dropped %s: it is older than %d days", name, self._keep_days)
        except Exception as exc:
            # The default partition takes what has no day: nothing is lost meanwhile.
            logger.warning("the days of the ledger were not looked after: %s", exc)

    async def ensure(self) -> int:
        """Make what is missing from yesterday to a week ahead; return how many days were made.

        Raises: `StoreUnavailable`: a lock that was not to be had among its causes.
        """
        if not await self._missing():
            return 0
        async with self._database.platform(Purpose.LEDGER) as connection:
            await take_advisory_lock(connection)
            await _be_brief(connection)
            made = [await _make(connection, day) for day in await self._missing(connection)]
        return sum(made)

    async def drop_older(self, days: int) -> Sequence[str]:
        """Forget each day that ended more than so many days ago; return the partitions dropped.

        Sums by the hour and the day stay. Raises: as `ensure`.
        """
        oldest = self._today() - timedelta(days=days)
        dropped = []
        while (name := await self._drop_one(oldest)) is not None:
            dropped.append(name)
        # What is as old in the default partition; in steps that are each short.
        is_more = True
        while is_more:
            async with self._database.platform(Purpose.LEDGER) as connection:
                given = {"oldest": _start_of(oldest), "num_rows": _DELETED_ROWS}
                is_more = (await connection.execute(_DELETE, given)).rowcount == _DELETED_ROWS
        return dropped

    async def _drop_one(self, oldest: date) -> str | None:
        """Drop one day, in a transaction of its own: each holds the whole ledger while it lasts."""
        async with self._database.platform(Purpose.LEDGER) as connection:
            await take_advisory_lock(connection)
            await _be_brief(connection)
            name: str | None = await connection.scalar(_DROP, {"oldest": oldest})
            return name

    def _today(self) -> date:
        return datetime.fromtimestamp(self._clock.time(), UTC).date()

    async def _missing(self, connection: AsyncConnection | None = None) -> list[date]:
        if connection is None:
            async with self._database.platform(Purpose.LEDGER) as opened:
                return await self._missing(opened)
        present = set(await _days(connection))
        today = self._today()
        wanted = [today + timedelta(days=n) for n in range(-DAYS_BEHIND, DAYS_AHEAD + 1)]
        return [day for day in wanted if _name_of(day) not in present]


async def _make(connection: AsyncConnection, day: date) -> bool:
    """Make one day; False where the default partition holds rows of it."""
    if await connection.scalar(_MAKE, {"day": day}):
        return True
    logger.warning("%s is not made: the default partition has rows of that day", _name_of(day))
    return False


async def _be_brief(connection: AsyncConnection) -> None:
    # A statement that waits for this lock has every later one of the ledger wait behind it.
    await connection.execute(text(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT_S}s'"))


async def _days(connection: AsyncConnection) -> list[str]:
    return sorted(name for name in await connection.scalars(_PRESENT) if _NAME.fullmatch(name))


def _start_of(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def _name_of(day: date) -> str:
    return f"usage_events_{day:%Y%m%d}"
