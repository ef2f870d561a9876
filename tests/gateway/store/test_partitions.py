"""The days of the ledger: made ahead, taken by rows, dropped when they are old."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import text

from gateway.settings import Settings
from gateway.store import open_store
from gateway.store.database import Database
from gateway.store.ledger import SqlLedger
from gateway.store.migrate import downgrade, upgrade
from gateway.store.partitions import Partitions
from tests.gateway.usage_rows import usage_row

pytestmark = pytest.mark.anyio

# Far from today, whose days the copied database may have already.
NOON = datetime(2031, 3, 1, 12, tzinfo=UTC)


class ClockAt:
    def __init__(self, now: datetime) -> None:
        self.now = now

    def time(self) -> float:
        return self.now.timestamp()

    def monotonic(self) -> float:
        return self.now.timestamp()


@pytest.fixture
def partitions(database: Database) -> Partitions:
    return Partitions(database, clock=ClockAt(NOON))


async def test_yesterday_to_a_week_ahead_are_made_once(
    database: Database, partitions: Partitions
) -> None:
    """Nine days, across the end of a month; a second call has nothing to do."""
    assert await partitions.ensure() == 9
    assert await partitions.ensure() == 0
    assert await _days(database) == ["20310228", *(f"2031030{n}" for n in range(1, 9))]


async def test_the_next_day_adds_one(database: Database) -> None:
    """A process that runs on makes what has come into reach."""
    clock = ClockAt(NOON)
    partitions = Partitions(database, clock=clock)
    await partitions.ensure()
    clock.now += timedelta(days=1)
    assert await partitions.ensure() == 1


async def test_gateways_that_start_together_make_each_day_once(database: Database) -> None:
    """Four at once all succeed, and make nine days between them."""
    made = await asyncio.gather(
        *(Partitions(database, clock=ClockAt(NOON)).ensure() for _ in range(4))
    )
    assert sum(made) == 9


async def test_rows_go_to_their_day(database: Database, partitions: Partitions) -> None:
    """The first and the last microsecond of a day are its own, and a row without a day is kept."""
    await partitions.ensure()
    midnight = NOON.replace(hour=0)
    moments = [
        midnight - timedelta(microseconds=1),
        midnight,
        midnight + timedelta(days=1, microseconds=-1),
        midnight + timedelta(days=1),
        midnight + timedelta(days=30),
    ]
    await SqlLedger(database).insert([usage_row(at=moment) for moment in moments])
    query = text(
        "SELECT tableoid::regclass::text, count(*) FROM usage_events GROUP BY 1 ORDER BY 1"
    )
    async with database.platform() as connection:
        found = [tuple(row) for row in await connection.execute(query)]
    assert found == [
        ("usage_events_20310228", 1),
        ("usage_events_20310301", 2),
        ("usage_events_20310302", 1),
        ("usage_events_default", 1),
    ]


async def test_a_partition_is_as_closed_as_the_ledger(
    database: Database, partitions: Partitions
) -> None:
    """Row-level security is enabled and forced, and no role may read a day by its own name."""
    await partitions.ensure()
    async with database.as_itself() as connection:
        locked = await connection.scalars(
            text(
                "SELECT relrowsecurity AND relforcerowsecurity FROM pg_class "
                "WHERE relname LIKE 'usage_events_2031%' AND relkind = 'r'"
            )
        )
        assert locked.all() == [True] * 9
        granted = await connection.scalars(
            text(
                "SELECT has_table_privilege(role, 'usage_events_20310301', 'SELECT') "
                "FROM unnest(ARRAY['sluice_app', 'sluice_platform']) AS role"
            )
        )
        assert granted.all() == [False, False]


async def test_a_day_with_rows_in_the_default_partition_stays_there(
    database: Database, partitions: Partitions, caplog: pytest.LogCaptureFixture
) -> None:
    """The other days are made, the row is still found, and a later row joins it."""
    ledger = SqlLedger(database)
    await ledger.insert([usage_row(at=NOON)])
    assert await partitions.ensure() == 8
    assert "the default partition has rows of that day" in caplog.text
    await ledger.insert([usage_row(at=NOON), usage_row(at=NOON + timedelta(days=1))])
    async with database.platform() as connection:
        assert await connection.scalar(text("SELECT count(*) FROM usage_events")) == 3
    assert "20310301" not in await _days(database)


async def test_a_table_that_is_locked_stops_no_start(
    database: Database, owner: Database, partitions: Partitions, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the ledger is locked for long, the days are left for a later round, with a word."""
    async with owner.as_itself() as connection:
        await connection.execute(text("LOCK TABLE usage_events"))
        await partitions.look_after()
    assert "not looked after" in caplog.text
    assert await _days(database) == []
    await partitions.look_after()
    assert len(await _days(database)) == 9


async def test_old_days_are_dropped_and_their_sums_stay(
    database: Database, partitions: Partitions
) -> None:
    """A day goes when it ended more than so many days ago, wherever its rows are."""
    await partitions.ensure()
    ledger = SqlLedger(database)
    await ledger.insert([usage_row(at=NOON + timedelta(days=n)) for n in range(-5, 4)])
    later = Partitions(database, keep_days=3, clock=ClockAt(NOON + timedelta(days=4)))
    await later.look_after()
    days = await _days(database)
    assert (days[0], len(days)) == ("20310302", 11)
    async with database.platform() as connection:
        left = await connection.scalars(text("SELECT at::date::text FROM usage_events ORDER BY at"))
        assert left.all() == ["2031-03-02", "2031-03-03", "2031-03-04"]
        for table in ("usage_hourly", "usage_daily"):
            assert await connection.scalar(text(f"SELECT sum(requests) FROM {table}")) == 9


async def test_a_ledger_with_days_can_be_migrated_down(
    owner: Database, partitions: Partitions
) -> None:
    """The days go with the ledger and come again with it."""
    await partitions.ensure()
    await downgrade(owner, "0002")
    await upgrade(owner)
    assert await partitions.ensure() == 9


async def test_a_first_start_makes_the_days(
    tmp_path: Path, empty_database_url: str, redis_url: str
) -> None:
    """Opening a store leaves a day for the requests of now and of the week ahead."""
    settings = Settings(data_dir=tmp_path, database_url=empty_database_url, redis_url=redis_url)
    async with open_store(settings) as store:
        await store.ledger.insert([usage_row(at=datetime.now(UTC) + timedelta(days=6))])
        query = text("SELECT tableoid::regclass::text FROM usage_events")
        async with store.database.platform() as connection:
            assert re.fullmatch(r"usage_events_\d{8}", str(await connection.scalar(query)))


async def _days(database: Database) -> list[str]:
    async with database.as_itself() as connection:
        names = await connection.scalars(
            text("SELECT relname FROM pg_class WHERE relname ~ '^usage_events_2031\\d{4}$'")
        )
        return sorted(name.removeprefix("usage_events_") for name in names)
