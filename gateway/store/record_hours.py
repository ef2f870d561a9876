"""The hours of request records: a partition each, made ahead, and dropped when they are old.

As with the days of the ledger (`partitions`), the default partition takes what has no hour, two
functions of the owner's make and drop them (revision 0017), gateways take turns under the advisory
lock of the migrations, and no failure here stops a start or a request: the next round tries again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.background import JITTER, Background
from gateway.ports import Clock
from gateway.store.database import Database
from gateway.store.migrate import take_advisory_lock
from gateway.store.pools import Purpose

logger = logging.getLogger(__name__)

HOURS_BEHIND, HOURS_AHEAD = 1, 6
INTERVAL_S: Final = 900.0
_LOCK_TIMEOUT_S: Final = 2
_DELETED_ROWS: Final = 1000

_PRESENT = text(
    "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid "
    "WHERE i.inhparent = 'request_records'::regclass"
)
# Of the hours that there are, it looks into older ones alone.
_IS_OLDER = text("SELECT EXISTS (SELECT FROM request_records WHERE at < :oldest)")
_MAKE = text("SELECT make_record_hour(:hour)")
_DROP = text("SELECT drop_record_hour(:oldest)")
_DELETE = text(
    "DELETE FROM request_records WHERE (request_id, at) IN ("
    "SELECT request_id, at FROM request_records WHERE at < :oldest LIMIT :num_rows)"
)


class RecordHours:
    """Keep the hours of request records, `keep_hours` of them beside the present one."""

    def __init__(self, database: Database, *, keep_hours: int, clock: Clock = time) -> None:
        self._database = database
        self._keep_hours = keep_hours
        self._clock = clock

    def running(self) -> Background:
        """Look after the hours while the block runs."""
        return Background(
            "looking after the hours of request records",
            self.look_after,
            interval_s=INTERVAL_S,
            jitter=JITTER,
        )

    async def look_after(self) -> None:
        """Make and drop what is due; what fails is logged and left for the next round."""
        try:
            await self.ensure()
            await self.drop_older()
        except Exception as exc:
            logger.warning("the hours of request records were not looked after: %s", exc)

    async def ensure(self) -> int:
        """Make what is missing from the last hour to some ahead; return how many were made.

        Raises: `StoreUnavailable`: a lock that was not to be had among its causes.
        """
        async with self._database.platform(Purpose.REPORTS) as connection:
            if not await self._missing(connection):
                return 0
        async with self._database.platform(Purpose.REPORTS) as connection:
            await take_advisory_lock(connection)
            await _be_brief(connection)
            made = [
                bool(await connection.scalar(_MAKE, {"hour": hour}))
                for hour in await self._missing(connection)
            ]
        return sum(made)

    async def drop_older(self) -> Sequence[str]:
        """Forget each hour that ended longer ago than is kept; return the partitions dropped.

        Raises: as `ensure`.
        """
        oldest = self._now().replace(minute=0, second=0, microsecond=0)
        oldest -= timedelta(hours=self._keep_hours)
        dropped: list[str] = []
        if not await self._is_any_older(oldest):
            return dropped
        while (name := await self._drop_one(oldest)) is not None:
            dropped.append(name)
        # What is as old in the default partition.
        is_more = True
        while is_more:
            async with self._database.platform(Purpose.REPORTS) as connection:
                given = {"oldest": oldest, "num_rows": _DELETED_ROWS}
                is_more = (await connection.execute(_DELETE, given)).rowcount == _DELETED_ROWS
        return dropped

    async def _is_any_older(self, oldest: datetime) -> bool:
        """Tell whether there is anything to drop, without a lock: mostly there is not."""
        async with self._database.platform(Purpose.REPORTS) as connection:
            # By their names; that of the default partition is after all of them.
            first = _name_of(oldest)
            if any(name < first for name in await connection.scalars(_PRESENT)):
                return True
            return bool(await connection.scalar(_IS_OLDER, {"oldest": oldest}))

    async def _drop_one(self, oldest: datetime) -> str | None:
        async with self._database.platform(Purpose.REPORTS) as connection:
            await take_advisory_lock(connection)
            await _be_brief(connection)
            name: str | None = await connection.scalar(_DROP, {"oldest": oldest})
            return name

    async def _missing(self, connection: AsyncConnection) -> list[datetime]:
        present = set(await connection.scalars(_PRESENT))
        now = self._now()
        wanted = [now + timedelta(hours=n) for n in range(-HOURS_BEHIND, HOURS_AHEAD + 1)]
        return [hour for hour in wanted if _name_of(hour) not in present]

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.time(), UTC)


def _name_of(hour: datetime) -> str:
    return f"request_records_{hour:%Y%m%d%H}"


async def _be_brief(connection: AsyncConnection) -> None:
    # A statement that waits for this lock has every later one of the table wait behind it.
    await connection.execute(text(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT_S}s'"))
