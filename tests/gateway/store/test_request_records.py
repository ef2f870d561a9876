"""Records of finished requests, on a real PostgreSQL: read as they were written, by whose they are.

Their hours are made ahead and dropped when they are old.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text

from gateway.domain.page import PageRequest
from gateway.domain.request_record import Cause, RecordFilter
from gateway.errors import InvalidRequest
from gateway.store.database import Database
from gateway.store.pools import Purpose
from gateway.store.record_hours import RecordHours
from gateway.store.request_records import SqlRequestRecords
from tests.gateway.request_records import request_record

pytestmark = pytest.mark.anyio

OURS = UUID(int=1)
# Far from now, whose hours the copied database has already.
NOON = datetime(2031, 3, 1, 12, 20, tzinfo=UTC)


class ClockAt:
    def __init__(self, now: datetime) -> None:
        self.now = now

    def time(self) -> float:
        return self.now.timestamp()

    def monotonic(self) -> float:
        return self.now.timestamp()


async def test_a_record_is_read_as_it_was_written(database: Database) -> None:
    """Every field comes back; a second insert of it changes nothing."""
    records = SqlRequestRecords(database)
    plain = request_record()
    bare = request_record(key_id=None, cause=None, missed=(), ttft_s=None, status=0, details={})
    assert await records.insert([plain, bare]) == 2
    assert await records.insert([plain, request_record()]) == 1
    assert await records.insert([]) == 0
    assert await records.get(OURS, plain.request_id) == plain
    assert await records.get(OURS, bare.request_id) == bare


async def test_another_tenants_record_is_not_there(database: Database) -> None:
    """Neither by its id nor in a list, for another organisation or who is bound to a tenant."""
    records = SqlRequestRecords(database)
    ours, theirs = request_record(), request_record(tenant_id=UUID(int=9))
    await records.insert([ours, theirs])
    assert await records.get(OURS, theirs.request_id) == theirs
    assert await records.get(OURS, theirs.request_id, within=ours.tenant_id) is None
    assert await records.get(UUID(int=8), ours.request_id) is None
    seen = await records.page(OURS, RecordFilter(), PageRequest(9), within=ours.tenant_id)
    assert [one.request_id for one in seen.data] == [ours.request_id]
    everything = RecordFilter(tenant_id=theirs.tenant_id)
    seen = await records.page(OURS, everything, PageRequest(9), within=ours.tenant_id)
    assert seen.data == []
    assert (await records.page(UUID(int=8), RecordFilter(), PageRequest(9))).data == []


async def test_the_database_itself_keeps_tenants_apart(database: Database) -> None:
    """A query without any condition sees its transaction's tenant alone, and may write nothing."""
    records = SqlRequestRecords(database)
    ours, theirs = request_record(), request_record(tenant_id=UUID(int=9))
    await records.insert([ours, theirs])
    async with database.tenant(ours.tenant_id) as connection:
        found = await connection.scalars(text("SELECT request_id FROM request_records"))
        assert found.all() == [ours.request_id]
    for change in ("DELETE FROM request_records", "UPDATE request_records SET code = 'x'"):
        with pytest.raises(Exception, match="permission denied"):
            async with database.tenant(ours.tenant_id) as connection:
                await connection.execute(text(change))


async def test_pages_hold_the_newest_first_without_details(database: Database) -> None:
    """Pages follow each other through records of the same moment; details are left out."""
    records = SqlRequestRecords(database)
    made = [request_record(at=NOON + timedelta(seconds=n // 2)) for n in range(5)]
    await records.insert(made)
    found, request = [], PageRequest(2)
    while True:
        page = await records.page(OURS, RecordFilter(), request)
        found += page.data
        if page.next is None:
            break
        request = PageRequest(2, page.next)
    assert [one.request_id for one in found] == [
        one.request_id for one in sorted(made, key=lambda one: (one.at, one.request_id))[::-1]
    ]
    assert all(one.details == {} for one in found)
    with pytest.raises(InvalidRequest):
        await records.page(OURS, RecordFilter(), PageRequest(2, ("x", str(uuid4()))))


async def test_a_list_is_chosen_from(database: Database) -> None:
    """By tenant, status, cause, missed promises and time."""
    records = SqlRequestRecords(database)
    one = request_record()
    other = request_record(
        at=NOON, tenant_id=UUID(int=9), status=429, cause=Cause.OWN_LIMIT, missed=()
    )
    await records.insert([one, other])
    for chosen in (
        RecordFilter(tenant_id=UUID(int=9)),
        RecordFilter(status=429),
        RecordFilter(cause=Cause.OWN_LIMIT),
        RecordFilter(has_missed=False),
        RecordFilter(since=NOON),
        RecordFilter(since=NOON, until=NOON + timedelta(seconds=1)),
    ):
        page = await records.page(OURS, chosen, PageRequest(9))
        assert [found.request_id for found in page.data] == [other.request_id], chosen
    page = await records.page(OURS, RecordFilter(has_missed=True, until=NOON), PageRequest(9))
    assert [found.request_id for found in page.data] == [one.request_id]


async def test_hours_are_made_ahead_once(database: Database) -> None:
    """Eight from the last hour on, across midnight, by however many gateways start."""
    clock = ClockAt(NOON.replace(hour=20))
    made = await asyncio.gather(
        *(RecordHours(database, keep_hours=24, clock=clock).ensure() for _ in range(3))
    )
    assert sum(made) == 8
    assert await _hours(database, "2031") == [
        *(f"20310301{hour:02}" for hour in range(19, 24)),
        *(f"20310302{hour:02}" for hour in range(3)),
    ]
    clock.now += timedelta(hours=1)
    assert await RecordHours(database, keep_hours=24, clock=clock).ensure() == 1


async def test_old_hours_are_dropped_with_their_records(database: Database) -> None:
    """What is kept a day goes with its hour, and with the default partition where it had none."""
    records, clock = SqlRequestRecords(database), ClockAt(NOON)
    hours = RecordHours(database, keep_hours=24, clock=clock)
    await hours.ensure()
    without_hour, first, last = (
        request_record(at=NOON - timedelta(hours=3)),
        request_record(at=NOON.replace(minute=0)),
        request_record(at=NOON + timedelta(hours=1)),
    )
    await records.insert([without_hour, first, last])
    clock.now = NOON + timedelta(hours=24)
    await hours.look_after()
    assert [one for one in await _hours(database, "2031") if one < "2031030112"] == []
    left = (await records.page(OURS, RecordFilter(), PageRequest(9))).data
    assert {one.request_id for one in left} == {first.request_id, last.request_id}
    clock.now += timedelta(hours=1)
    await hours.look_after()
    left = (await records.page(OURS, RecordFilter(), PageRequest(9))).data
    assert [one.request_id for one in left] == [last.request_id]
    assert (await _hours(database, "2031"))[0] == "2031030113"


async def test_what_has_no_hour_is_forgotten_where_no_hour_is_old(database: Database) -> None:
    """Old records go with the default partition though every hour that there is may stay."""
    records = SqlRequestRecords(database)
    old, young = request_record(at=NOON - timedelta(hours=25)), request_record(at=NOON)
    await records.insert([old, young])
    now = ClockAt(NOON)
    async with database.platform(Purpose.REPORTS) as connection:
        # Of the present, which the database that was copied has.
        for name in await _hours(database, "2"):
            day = datetime.strptime(name, "%Y%m%d%H").replace(tzinfo=UTC)
            assert day < NOON, name
            await connection.execute(
                text("SELECT drop_record_hour(:oldest)"), {"oldest": day + timedelta(hours=1)}
            )
    assert await RecordHours(database, keep_hours=24, clock=now).drop_older() == []
    left = (await records.page(OURS, RecordFilter(), PageRequest(9))).data
    assert [one.request_id for one in left] == [young.request_id]


async def _hours(database: Database, begin: str) -> list[str]:
    async with database.platform() as connection:
        names = await connection.scalars(
            text(
                "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid "
                "WHERE i.inhparent = 'request_records'::regclass"
            )
        )
        found = (name.removeprefix("request_records_") for name in names)
        return sorted(hour for hour in found if hour.startswith(begin))


async def test_who_looks_for_its_own_refusals_reads_nobody_elses(database: Database) -> None:
    """Nor all of its own: what was refused, or waited, is found by tenant."""
    records = SqlRequestRecords(database)
    ours = request_record().tenant_id
    refused = {"status": 429, "cause": Cause.OWN_LIMIT}
    made = []
    for number in range(1000):
        at = NOON + timedelta(seconds=number)
        whose = ours if number % 20 == 0 else UUID(int=9)
        made += [request_record(at=at), request_record(at=at, tenant_id=whose, **refused)]
    await records.insert(made)
    async with database.platform(Purpose.REPORTS) as connection:
        await connection.execute(text("ANALYZE request_records"))
    for chosen in (RecordFilter(status=429), RecordFilter(cause=Cause.OWN_LIMIT)):
        before = await _rows_read(database)
        found = await records.page(OURS, chosen, PageRequest(9), within=ours)
        assert len(found.data) == 9
        # And one that tells whether there are more.
        assert await _rows_read(database) - before == 10


async def _rows_read(database: Database) -> int:
    """Return how many rows of the records were read, ever, by the one connection that reads."""
    async with database.platform(Purpose.REPORTS) as connection:
        await connection.execute(text("SELECT pg_stat_force_next_flush()"))
    async with database.platform(Purpose.REPORTS) as connection:
        return await connection.scalar(
            text(
                "SELECT sum(coalesce(idx_tup_fetch, 0) + seq_tup_read) FROM pg_stat_all_tables "
                "WHERE relname LIKE 'request\\_records%'"
            )
        )
