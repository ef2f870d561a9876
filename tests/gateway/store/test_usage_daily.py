"""Sums of days that PostgreSQL keeps by itself, whoever changes the hours they are of."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text

from gateway.domain.tier import Tier
from gateway.domain.usage import Outcome, UsageRow
from gateway.store.database import Database
from gateway.store.ledger import SqlLedger
from gateway.store.migrate import downgrade, upgrade
from tests.gateway.store.agreeing_sums import assert_days_agree, assert_sums_agree
from tests.gateway.usage_rows import MORNING, usage_row

pytestmark = pytest.mark.anyio

MIDNIGHT = MORNING.replace(hour=0, minute=0, second=0, microsecond=0)
HOUR = timedelta(hours=1)


@pytest.fixture
async def before(empty_database_url: str) -> AsyncIterator[Database]:
    """Open a database as the release before sums by day has it, as its owner."""
    database = Database(empty_database_url)
    await upgrade(database)
    await downgrade(database, "0023")
    yield database
    await database.close()


@pytest.mark.parametrize("seed", range(3))
async def test_days_agree_whatever_is_done_to_hours(database: Database, seed: int) -> None:
    """New and repeated rows, lost ones and what takes their place, from four writers at once;
    then hours that somebody changes, moves and deletes by hand.
    """
    draw = random.Random(seed)
    ledger, known = SqlLedger(database), list[UsageRow]()
    for _ in range(5):
        batches = []
        for _ in range(4):
            fresh = [_random_row(draw) for _ in range(draw.randrange(15))]
            known += fresh
            again = (
                [
                    replace(
                        one, outcome=draw.choice(list(Outcome)), nano_usd=draw.randrange(10**15)
                    )
                    for one in draw.choices(known, k=draw.randrange(15))
                ]
                if known
                else []
            )
            batches.append(fresh + again)
        await asyncio.gather(*map(ledger.insert, batches))
        await assert_sums_agree(database)
    changes = (
        "UPDATE usage_hourly SET requests = requests + 7, nano_usd = 1 WHERE tier = 'flex'",
        "UPDATE usage_hourly SET hour = hour + interval '30 days', model = model || '2' "
        "WHERE tenant_id = '00000000-0000-0000-0000-000000000001'",
        "UPDATE usage_hourly SET requests = requests",
        "DELETE FROM usage_hourly WHERE key_id = '00000000-0000-0000-0000-000000000001'",
        "DELETE FROM usage_hourly",
    )
    for change in changes:
        async with database.platform() as connection:
            assert (await connection.execute(text(change))).rowcount > 0
        await assert_days_agree(database)
    assert await _requests(database) == 0


async def test_a_day_is_one_of_utc(database: Database) -> None:
    """Whatever the zone of who writes, to the microsecond at its borders."""
    moments = [MIDNIGHT - timedelta(microseconds=1), MIDNIGHT, MIDNIGHT + 23 * HOUR]
    async with database.platform() as connection:
        await connection.execute(text("SET LOCAL TimeZone = 'Asia/Kathmandu'"))
        for moment in moments:
            hour = moment.replace(minute=0, second=0, microsecond=0)
            await connection.execute(_HOUR_AS_BEFORE, {"hour": hour, "key_id": uuid4()})
    async with database.platform() as connection:
        days = await connection.execute(
            text("SELECT day, sum(requests) FROM usage_daily GROUP BY day ORDER BY day")
        )
        assert [tuple(row) for row in days] == [(MIDNIGHT - 24 * HOUR, 1), (MIDNIGHT, 2)]


async def test_writers_of_new_and_of_known_hours_never_wait_in_a_circle(
    database: Database,
) -> None:
    """Each begins the hours of keys of whose days the other adds to, at the same time."""
    ledger = SqlLedger(database)
    keys = sorted(uuid4() for _ in range(400))
    for number in range(6):
        hours = [MIDNIGHT + (2 * number + n) * HOUR for n in range(2)]
        await ledger.insert([usage_row(at=hours[n % 2], key_id=key) for n, key in enumerate(keys)])
        everything = [[usage_row(at=hour, key_id=key) for key in keys] for hour in hours]
        await asyncio.gather(*map(ledger.insert, everything))
        await assert_sums_agree(database)
    assert await _requests(database) == 6 * 3 * 400


async def test_0024_sums_what_there_is_and_suits_the_code_before_it(
    before: Database,
) -> None:
    """Hours of before are in days, and so are those that the older code writes beside it; down
    and up again as well.
    """
    draw = random.Random(5)
    await _write_as_before(before, draw)
    for _ in range(2):
        await upgrade(before)
        await assert_days_agree(before)
        await _write_as_before(before, draw)
        await assert_days_agree(before)
        await downgrade(before, "0023")
    await upgrade(before)
    assert await _requests(before) == 3 * 60


async def test_0024_misses_no_hour_that_is_written_meanwhile(
    before: Database,
) -> None:
    """It sums days while one who writes is not done, waits for him, and sums his again."""
    await _write_as_before(before, random.Random(6))
    async with before.platform() as connection:
        for key_id in (UUID(int=0), uuid4()):
            await connection.execute(_HOUR_AS_BEFORE, {"hour": MIDNIGHT, "key_id": key_id})
        upgrading = asyncio.create_task(upgrade(before))
        while not await _is_waited_for(before):
            assert not upgrading.done()
            await asyncio.sleep(0.02)
    await upgrading
    await assert_days_agree(before)
    assert await _requests(before) == 60 + 2


# What a release does that knows of hours alone.
_HOUR_AS_BEFORE = text(
    """
    INSERT INTO usage_hourly AS kept (hour, organisation_id, tenant_id, key_id, model, tier,
        is_batch, input_tokens, cached_tokens, output_tokens, nano_usd, requests)
    VALUES (:hour, '00000000-0000-0000-0000-000000000001', '00000000-0000-0000-0000-000000000002',
        :key_id, 'm', 'default', false, 3, 1, 2, 1234567890123, 1)
    ON CONFLICT (hour, organisation_id, tenant_id, key_id, model, tier, is_batch) DO UPDATE
    SET input_tokens = kept.input_tokens + excluded.input_tokens,
        cached_tokens = kept.cached_tokens + excluded.cached_tokens,
        output_tokens = kept.output_tokens + excluded.output_tokens,
        nano_usd = kept.nano_usd + excluded.nano_usd, requests = kept.requests + excluded.requests
    """
)


async def _write_as_before(database: Database, draw: random.Random) -> None:
    async with database.platform() as connection:
        for _ in range(60):
            hour = MIDNIGHT + draw.randrange(-60, 60) * HOUR
            key_id = UUID(int=draw.randrange(3))
            await connection.execute(_HOUR_AS_BEFORE, {"hour": hour, "key_id": key_id})


async def _is_waited_for(database: Database) -> bool:
    async with database.as_itself() as connection:
        query = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND mode = :mode)"
        waits = await connection.scalar(text(query), {"mode": "ShareRowExclusiveLock"})
        return bool(waits)


async def _requests(database: Database) -> int:
    async with database.platform() as connection:
        found = await connection.scalar(text("SELECT coalesce(sum(requests), 0) FROM usage_daily"))
        return int(found)


def _random_row(draw: random.Random) -> UsageRow:
    return usage_row(
        request_id=UUID(int=draw.getrandbits(128)),
        at=MIDNIGHT + timedelta(minutes=draw.randrange(-2000, 2000)),
        tenant_id=UUID(int=draw.randrange(2)),
        key_id=UUID(int=draw.randrange(3)),
        model=draw.choice(["a", "B", "b"]),
        tier=draw.choice(list(Tier)),
        is_batch=draw.random() < 0.3,
        output_tokens=draw.randrange(1000),
        nano_usd=draw.randrange(10**15),
        outcome=draw.choice(list(Outcome)),
    )
