"""The ledger against a real PostgreSQL: once each, and sums that always agree with the rows."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from sqlalchemy import func, select, text

from gateway.domain.limits import Sums
from gateway.domain.quota import PLATFORM, Scope, ScopeKind
from gateway.domain.tier import Tier
from gateway.domain.usage import Outcome, UsageRow
from gateway.errors import InternalFailure, StoreUnavailable
from gateway.store.database import Database
from gateway.store.ledger import SqlLedger
from gateway.store.tables import usage_events
from tests.gateway.store.agreeing_sums import assert_sums_agree
from tests.gateway.usage_rows import MORNING, usage_row

pytestmark = pytest.mark.anyio


async def test_a_row_is_stored_as_it_is(database: Database) -> None:
    """Every column comes back, to the microsecond, with and without what may be missing."""
    full = usage_row(at=MORNING, ended_at=MORNING + timedelta(microseconds=1))
    bare = usage_row(price_id=None, ttft_ms=None, outcome=Outcome.FAILED, is_batch=True)
    assert await SqlLedger(database).insert([full, bare]) == 2
    async with database.platform() as connection:
        found = {row.request_id: row for row in await connection.execute(select(usage_events))}
    for row in (full, bare):
        stored = found[row.request_id]
        for one in usage_events.c:
            assert getattr(stored, one.name) == getattr(row, one.name), one.name


async def test_no_rows_are_no_work(database: Database) -> None:
    """An empty batch inserts nothing and an empty question has an empty answer."""
    ledger = SqlLedger(database)
    assert await ledger.insert([]) == 0
    assert await ledger.used([]) == []


async def test_a_replay_changes_nothing(database: Database) -> None:
    """A request counts once, however often its row comes, also twice in one batch."""
    ledger = SqlLedger(database)
    rows = [usage_row(output_tokens=n) for n in range(5)]
    assert await ledger.insert([rows[0], rows[0]]) == 1
    assert await ledger.insert(rows) == 4
    assert await ledger.insert(rows) == 0
    assert await ledger.insert([replace(row, output_tokens=99) for row in rows]) == 0
    assert await _totals(database) == (5, 0 + 1 + 2 + 3 + 4)


async def test_what_was_lost_is_replaced_by_the_truth(database: Database) -> None:
    """The estimate for a killed request gives way to its row; sums change by the difference."""
    ledger = SqlLedger(database)
    lost = usage_row(outcome=Outcome.LOST, output_tokens=256, nano_usd=1000)
    true = replace(lost, outcome=Outcome.COMPLETED, output_tokens=300, nano_usd=1100)
    assert await ledger.insert([lost]) == 1
    assert await ledger.insert([lost]) == 0
    assert await ledger.insert([true, usage_row(output_tokens=1)]) == 2
    assert await _totals(database) == (2, 301)
    # The sweeper comes late: what is known stays.
    assert await ledger.insert([lost]) == 0
    assert await ledger.insert([true]) == 0
    assert await _totals(database) == (2, 301)
    async with database.platform() as connection:
        query = select(usage_events).where(usage_events.c.request_id == lost.request_id)
        stored = (await connection.execute(query)).one()
    assert (stored.outcome, stored.output_tokens, stored.nano_usd) == ("completed", 300, 1100)


async def test_the_truth_may_be_of_another_model(database: Database) -> None:
    """A replaced row leaves the sum of its key as told before, and joins that of its own."""
    ledger = SqlLedger(database)
    lost = usage_row(outcome=Outcome.LOST, model="guessed")
    await ledger.insert([lost])
    await ledger.insert(
        [replace(lost, outcome=Outcome.CANCELLED, model="true", input_tokens=7, cached_tokens=0)]
    )
    await assert_sums_agree(database)
    async with database.platform() as connection:
        sums = await connection.execute(
            text("SELECT model, input_tokens, requests FROM usage_hourly ORDER BY model")
        )
        assert [tuple(row) for row in sums] == [("guessed", 0, 0), ("true", 7, 1)]


@pytest.mark.parametrize("order", [("lost", "true"), ("true", "lost")])
async def test_lost_and_truth_may_come_in_one_batch(
    database: Database, order: tuple[str, str]
) -> None:
    """Whatever their order, the true row is what is left."""
    lost = usage_row(outcome=Outcome.LOST, output_tokens=256)
    rows = {"lost": lost, "true": replace(lost, outcome=Outcome.COMPLETED, output_tokens=3)}
    ledger = SqlLedger(database)
    await ledger.insert([rows[name] for name in order])
    assert await _totals(database) == (1, 3)


@pytest.mark.parametrize("seed", range(4))
async def test_sums_always_agree_with_the_rows(database: Database, seed: int) -> None:
    """Whatever mixture of new, repeated, lost and replaced rows four writers insert at once."""
    draw = random.Random(seed)
    known: list[UsageRow] = []
    ledger = SqlLedger(database)
    for _ in range(6):
        batches = []
        for _ in range(4):
            fresh = [_random_row(draw) for _ in range(draw.randrange(12))]
            known += fresh
            again = draw.choices(known, k=draw.randrange(12)) if known else []
            batch = fresh + [_another_end(draw, row) for row in again]
            draw.shuffle(batch)
            batches.append(batch)
        await asyncio.gather(*(ledger.insert(batch) for batch in batches))
        await assert_sums_agree(database)
    async with database.platform() as connection:
        requests = await connection.scalar(text("SELECT sum(requests) FROM usage_hourly"))
    assert requests == len({row.request_id for row in known}) > 50


@pytest.mark.parametrize("repetition", range(5))
async def test_a_sweeper_and_a_replay_may_meet(database: Database, repetition: int) -> None:
    """The estimate and the truth, inserted at the same time, leave the truth and agreeing sums."""
    ledger = SqlLedger(database)
    lost = [usage_row(outcome=Outcome.LOST, output_tokens=256) for _ in range(500)]
    true = [replace(row, outcome=Outcome.COMPLETED, output_tokens=1) for row in lost]
    await asyncio.gather(
        ledger.insert(lost),
        ledger.insert(true),
        ledger.insert(true[::-1]),
    )
    assert await _totals(database) == (500, 500)


async def test_gateways_never_block_each_other_in_a_circle(database: Database) -> None:
    """The same hours and requests, in opposite orders at the same time, all get through."""
    ledger = SqlLedger(database)
    keys = [uuid4() for _ in range(300)]
    rows = [usage_row(key_id=key) for key in keys]
    await ledger.insert(rows)
    for _ in range(5):
        there = [usage_row(key_id=key) for key in keys]
        back = [usage_row(key_id=key) for key in reversed(keys)]
        await asyncio.gather(*(ledger.insert(batch) for batch in (there, back, there[::-1])))
    assert await _totals(database) == (11 * 300, 11 * 300 * 20)


@pytest.mark.parametrize(
    "changes",
    [
        {"output_tokens": 2**31},
        {"nano_usd": 2**63},
        {"cached_tokens": 101},
        {"model": "a\0b"},
        {"ttft_ms": 1e300},
    ],
    ids=str,
)
async def test_what_no_column_holds_is_refused(
    database: Database, changes: dict[str, object]
) -> None:
    """A row that can never be inserted is our fault, not an outage; its batch leaves nothing."""
    ledger = SqlLedger(database)
    with pytest.raises(InternalFailure):
        await ledger.insert([usage_row(), usage_row(**changes)])
    assert await _totals(database) == (0, 0)


async def test_a_database_that_is_gone_is_an_outage() -> None:
    """A server that cannot be reached is what the writer waits out."""
    database = Database("postgresql://nobody@127.0.0.1:1/none")
    with pytest.raises(StoreUnavailable):
        await SqlLedger(database).insert([usage_row()])
    await database.close()


async def test_used_sums_each_scope_over_its_own_hours(database: Database) -> None:
    """Key, tenant, organisation and platform, each from its start to before its end."""
    ledger = SqlLedger(database)
    organisation, tenant, key = UUID(int=1), UUID(int=2), UUID(int=3)
    hour = MORNING.replace(minute=0, second=0, microsecond=0)
    rows = [
        usage_row(at=hour, input_tokens=1, cached_tokens=0, output_tokens=10, nano_usd=5),
        usage_row(
            at=hour + timedelta(minutes=59, seconds=59),
            input_tokens=2,
            cached_tokens=2,
            output_tokens=20,
            nano_usd=6,
            tier=Tier.FLEX,
        ),
        usage_row(
            at=hour + timedelta(hours=1),
            input_tokens=4,
            cached_tokens=0,
            output_tokens=40,
            nano_usd=7,
            key_id=uuid4(),
        ),
        usage_row(
            at=hour - timedelta(hours=1),
            input_tokens=8,
            cached_tokens=0,
            output_tokens=80,
            nano_usd=8,
            tenant_id=uuid4(),
        ),
        usage_row(
            at=hour,
            input_tokens=16,
            cached_tokens=0,
            output_tokens=160,
            nano_usd=9,
            tenant_id=uuid4(),
            organisation_id=uuid4(),
        ),
    ]
    await ledger.insert(rows)
    now_s = int(hour.timestamp())
    day_s = 86_400
    wanted = [
        (Scope(ScopeKind.KEY, key), now_s - day_s, now_s + day_s),
        (Scope(ScopeKind.TENANT, tenant), now_s, now_s + 2 * 3600),
        (Scope(ScopeKind.TENANT, tenant), now_s, now_s + 3600),
        (Scope(ScopeKind.TENANT, tenant), now_s + 3600, now_s + 7200),
        (Scope(ScopeKind.ORGANISATION, organisation), now_s - 3600, now_s + day_s),
        (PLATFORM, now_s - day_s, now_s + day_s),
        (Scope(ScopeKind.KEY, uuid4()), now_s - day_s, now_s + day_s),
        # Asked twice is answered twice.
        (PLATFORM, now_s - day_s, now_s + day_s),
    ]
    assert await ledger.used(wanted) == [
        (4, 297, 28),
        (3, 77, 18),
        (2, 33, 11),
        (1, 44, 7),
        (4, 165, 26),
        (5, 341, 35),
        (0, 0, 0),
        (5, 341, 35),
    ]


async def test_the_hour_of_a_request_is_the_one_of_utc(database: Database) -> None:
    """Whatever the zone of the session and of the row, half-hour offsets included."""
    moment = datetime.fromisoformat("2026-11-21T10:15:00+05:45")
    await SqlLedger(database).insert([usage_row(at=moment)])
    async with database.platform() as connection:
        await connection.execute(text("SET LOCAL TimeZone = 'Asia/Kathmandu'"))
        hour = await connection.scalar(text("SELECT hour FROM usage_hourly"))
    assert hour == datetime(2026, 11, 21, 4, 0, tzinfo=UTC)


def _random_row(draw: random.Random) -> UsageRow:
    input_tokens = draw.randrange(1000)
    return usage_row(
        request_id=UUID(int=draw.getrandbits(128)),
        at=MORNING + timedelta(minutes=draw.randrange(-90, 90)),
        tenant_id=UUID(int=draw.randrange(2)),
        key_id=UUID(int=draw.randrange(3)),
        model=draw.choice(["a", "b"]),
        tier=draw.choice(list(Tier)),
        is_batch=draw.random() < 0.3,
        input_tokens=input_tokens,
        cached_tokens=draw.randrange(input_tokens + 1),
        output_tokens=draw.randrange(1000),
        nano_usd=draw.randrange(10**12),
        outcome=draw.choice(list(Outcome)),
    )


def _another_end(draw: random.Random, row: UsageRow) -> UsageRow:
    return replace(
        row,
        outcome=draw.choice(list(Outcome)),
        output_tokens=draw.randrange(1000),
        nano_usd=draw.randrange(10**12),
    )


async def _totals(database: Database) -> tuple[int, int]:
    """Return requests and output tokens, after checking that rows and sums agree."""
    await assert_sums_agree(database)
    async with database.platform() as connection:
        events = usage_events.c
        query = select(func.count(), func.coalesce(func.sum(events.output_tokens), 0))
        count, tokens = (await connection.execute(query)).one()
        return count, tokens


async def test_a_row_is_known_by_its_request(database: Database) -> None:
    """Of those asked for, the ones that have a row since then."""
    ledger = SqlLedger(database)
    new, old = usage_row(), usage_row(at=MORNING - timedelta(days=2))
    await ledger.insert([new, old])
    ids = [new.request_id, old.request_id, uuid4()]
    assert set(await ledger.booked(ids, MORNING.timestamp() - 60)) == {new.request_id}
    booked = await ledger.booked(ids, 0)
    assert set(booked) == {new.request_id, old.request_id}
    used = (new.input_tokens, new.cached_tokens, new.output_tokens, new.nano_usd)
    # The ledger knows no rates: what was cached counts for none.
    assert booked[new.request_id] == (*used, new.input_tokens - new.cached_tokens)
    assert await ledger.booked([], 0) == {}


async def test_rows_of_lost_requests_are_told_apart(database: Database) -> None:
    """By whom and when they were asked about; one that has its true row is none any more."""
    ledger = SqlLedger(database)
    lost = usage_row(outcome=Outcome.LOST)
    others = [usage_row(), usage_row(at=MORNING - timedelta(days=1), outcome=Outcome.LOST)]
    await ledger.insert([lost, *others])
    hour_s = int(MORNING.timestamp()) // 3600 * 3600
    scopes = [
        Scope(ScopeKind.KEY, lost.key_id),
        Scope(ScopeKind.TENANT, lost.tenant_id),
        Scope(ScopeKind.ORGANISATION, lost.organisation_id),
        PLATFORM,
        Scope(ScopeKind.KEY, uuid4()),
    ]
    wanted = [(scope, hour_s, hour_s + 3600) for scope in scopes]
    sums = Sums(1, lost.input_tokens + lost.output_tokens, lost.nano_usd)
    seen = await ledger.snapshot(wanted, [lost.request_id, uuid4()], 0)
    assert seen.vouched == [{lost.request_id: sums}] * 4 + [{}]
    assert (seen.used, set(seen.booked)) == (await ledger.used(wanted), {lost.request_id})
    await ledger.insert([replace(lost, outcome=Outcome.COMPLETED, output_tokens=1)])
    assert (await ledger.snapshot(wanted, [], 0)).vouched == [{}] * 5


async def test_sums_and_rows_of_a_snapshot_are_of_one_moment(database: Database) -> None:
    """However many rows come in between."""
    ledger = SqlLedger(database)
    rows = [usage_row(outcome=Outcome.LOST) for _ in range(150)]
    ids = [row.request_id for row in rows]
    hour_s = int(MORNING.timestamp()) // 3600 * 3600

    async def insert() -> None:
        for row in rows:
            await ledger.insert([row])

    async with asyncio.TaskGroup() as group:
        inserting = group.create_task(insert())
        while not inserting.done():
            seen = await ledger.snapshot([(PLATFORM, hour_s, hour_s + 3600)], ids, 0)
            numbers = (seen.used[0].requests, len(seen.vouched[0]), len(seen.booked))
            assert numbers == (numbers[0],) * 3
