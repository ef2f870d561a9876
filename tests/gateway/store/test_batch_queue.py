"""The queue of batch items on a real PostgreSQL: who runs what, and whose word counts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4
from zlib import crc32

import pytest
from sqlalchemy import Engine, event, func, insert, select, text, update

from gateway.domain.batch import ClaimedItem, ItemResult, ItemRun
from gateway.domain.usage import ItemRow, Outcome
from gateway.services.ledger import Spool
from gateway.store import Store
from gateway.store.batch_queue import _CLAIM, MAX_DEATHS
from gateway.store.batch_tables import batch_items, batch_results, batches
from gateway.store.database import Database
from gateway.store.tables import usage_events
from tests.gateway.store.batch_rows import most_rows
from tests.gateway.usage_rows import usage_row

pytestmark = pytest.mark.anyio

WORKER = uuid4()


async def batch_of(
    store: Store, num_items: int, tenant: int = 0, state: str = "in_progress"
) -> UUID:
    """Make a batch whose items run from the last line to the first."""
    assert store.first_start is not None
    key = store.first_start.keys[tenant].key
    batch_id, now = uuid4(), datetime.now(UTC)
    async with store.database.platform() as connection:
        await connection.execute(
            insert(batches).values(
                id=batch_id,
                tenant_id=key.tenant_id,
                key_id=key.id,
                endpoint="/v1/completions",
                state=state,
                input_file_id=uuid4(),
                completion_window_s=86400,
                num_items=num_items,
                expires_at=now + timedelta(days=1),
            )
        )
        await connection.execute(
            insert(batch_items),
            [
                {
                    "batch_id": batch_id,
                    "line": line,
                    "tenant_id": key.tenant_id,
                    "custom_id": f"item-{line}",
                    "place": num_items - line,
                    "offset_bytes": 100 * line,
                    "size_bytes": 99,
                }
                for line in range(num_items)
            ],
        )
    return batch_id


async def claim(
    store: Store, batch_id: UUID, limit: int = 1, lease_s: float = 60
) -> Sequence[ClaimedItem]:
    return await store.batch_queue.claim(batch_id, WORKER, limit=limit, lease_s=lease_s)


def row_of(item: ClaimedItem, *, is_error: bool = False, body: bytes = b"{}") -> ItemRow:
    """Bill a run of an item, with its result."""
    row = usage_row(tenant_id=item.tenant_id, is_batch=True, at=datetime.now(UTC))
    return ItemRow.of(row, ItemResult(item.run, is_error, body))


async def counts(store: Store, batch_id: UUID) -> tuple[int, int, int]:
    """Return what a batch says is done, failed, and used as output."""
    columns = (batches.c.num_done, batches.c.num_failed, batches.c.output_tokens)
    async with store.database.platform() as connection:
        done, failed, used = (
            await connection.execute(select(*columns).where(batches.c.id == batch_id))
        ).one()
        return done, failed, used


async def billed(store: Store, row: ItemRow) -> tuple[int, str]:
    used = usage_events.c
    query = select(used.nano_usd, used.outcome).where(used.request_id == row.request_id)
    async with store.database.platform() as connection:
        nano_usd, outcome = (await connection.execute(query)).one()
        return nano_usd, outcome


async def waited(store: Store, batch_id: UUID) -> None:
    """Have it be late enough for whatever is to come out again at all."""
    due = func.least(batch_items.c.run_after, func.now())
    later = batch_items.c.run_after < text("'infinity'")
    async with store.database.platform() as connection:
        await connection.execute(
            update(batch_items)
            .where(batch_items.c.batch_id == batch_id, later)
            .values(run_after=due)
        )


async def test_items_are_handed_out_once_and_in_order(store: Store) -> None:
    """Claims that run at once share the items; each gets its own by the batch's order."""
    batch_id = await batch_of(store, 43)
    first = [item.run.line for item in await claim(store, batch_id, limit=3)]
    assert first == [42, 41, 40]
    claims = await asyncio.gather(*(claim(store, batch_id, limit=7) for _ in range(8)))
    lines = [item.run.line for items in claims for item in items]
    assert sorted(lines) == list(range(40))
    for items in claims:
        own = [item.run.line for item in items]
        assert own == sorted(own, reverse=True)
        assert all(item.offset_bytes == 100 * item.run.line for item in items)
    assert await claim(store, batch_id) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "cancelling"},
        {"state": "validating"},
        {"paused_for": "budget"},
        {"expires_at": datetime(2026, 1, 1, tzinfo=UTC)},
    ],
)
async def test_a_batch_that_does_not_run_hands_out_nothing(
    store: Store, changes: dict[str, object]
) -> None:
    """Items are claimed of a batch in progress alone, that is not paused and has time left."""
    batch_id = await batch_of(store, 2)
    async with store.database.platform() as connection:
        await connection.execute(update(batches).where(batches.c.id == batch_id).values(**changes))
    assert await claim(store, batch_id) == []


async def test_a_batch_sums_what_it_costs_and_would_cost(store: Store) -> None:
    """Each result once; a late one adds nothing, one that does not say has saved nothing."""
    batch_id = await batch_of(store, 3)
    first, second = await claim(store, batch_id, limit=2)
    for row in (replace(row_of(first), full_nano_usd=2468), row_of(second)):
        await store.ledger.insert([row])
        await store.ledger.insert([replace(row, request_id=uuid4())])
    summed = select(batches.c.cost_nano_usd, batches.c.full_nano_usd)
    async with store.database.platform() as connection:
        found = (await connection.execute(summed.where(batches.c.id == batch_id))).one()
    assert tuple(found) == (2 * 1234, 2468 + 1234)


async def test_late_results_are_warned_of_together(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """However many runs come too late at once, that is one line of the log."""
    batch_id = await batch_of(store, 5)
    items = await claim(store, batch_id, limit=5)
    with caplog.at_level("WARNING", logger="gateway.store.ledger"):
        await store.ledger.insert([row_of(item) for item in items])
        assert not caplog.messages
        await store.ledger.insert([row_of(item) for item in items])
    assert caplog.messages == ["5 items of batches were given up, or run by others: not billed"]


async def test_a_result_is_stored_with_its_bill_and_counted(store: Store) -> None:
    """One insertion stores the answer, bills it and moves the counts; another changes nothing."""
    batch_id = await batch_of(store, 3)
    good, bad = await claim(store, batch_id, limit=2)
    rows = [row_of(good, body=b'{"\x00": 1}'), row_of(bad, is_error=True)]
    assert await store.ledger.insert([usage_row(), *rows]) == 3
    assert await store.ledger.insert(rows) == 0
    assert await counts(store, batch_id) == (1, 1, 40)
    [last] = await claim(store, batch_id)
    await store.ledger.insert([row_of(last)])
    assert await counts(store, batch_id) == (2, 1, 60)
    assert await billed(store, rows[0]) == (1234, Outcome.COMPLETED.value)
    async with store.database.platform() as connection:
        found = await connection.execute(
            select(batch_results.c.line, batch_results.c.is_error, batch_results.c.body)
            .where(batch_results.c.batch_id == batch_id)
            .order_by(batch_results.c.line)
        )
        stored = [tuple(row) for row in found]
    assert stored[1:] == [(bad.run.line, True, b"{}"), (good.run.line, False, b'{"\x00": 1}')]


async def test_an_answer_travels_as_its_bytes(store: Store) -> None:
    """One of megabytes is not spelled anew on the event loop, nor read as JSON by the database."""
    batch_id = await batch_of(store, 2)
    items = await claim(store, batch_id, limit=2)
    bodies = [bytes(100_000 + item.run.line) for item in items]
    texts: list[int] = []

    def note(connection: Any, cursor: Any, statement: str, given: Any, *more: Any) -> None:
        texts.extend(len(one) for one in given if isinstance(one, str))

    event.listen(Engine, "before_cursor_execute", note)
    await store.ledger.insert(
        [row_of(item, body=body) for item, body in zip(items, bodies, strict=True)]
    )
    event.remove(Engine, "before_cursor_execute", note)
    assert 0 < max(texts) < 5_000
    of_batch = batch_results.c.batch_id == batch_id
    async with store.database.platform() as connection:
        found = await connection.scalars(select(batch_results.c.body).where(of_batch))
        assert sorted(map(len, found)) == sorted(map(len, bodies))


async def test_a_worker_that_lost_its_lease_changes_nothing(store: Store) -> None:
    """Its result is dropped and bills nothing, whether its heir still runs or is done."""
    batch_id = await batch_of(store, 1)
    [old] = await claim(store, batch_id, lease_s=0)
    assert await store.batch_queue.take_back(10) == 1
    [heir] = await claim(store, batch_id)
    assert (heir.run.line, heir.run.generation) == (old.run.line, old.run.generation + 1)

    early, right, late = row_of(old, body=b"early"), row_of(heir, body=b"right"), row_of(old)
    for row in (early, right, late):
        await store.ledger.insert([row])
    assert await counts(store, batch_id) == (1, 0, 20)
    assert await billed(store, right) == (1234, Outcome.COMPLETED.value)
    for row in (early, late):
        assert await billed(store, row) == (0, Outcome.FAILED.value)
    async with store.database.platform() as connection:
        bodies = await connection.scalars(
            select(batch_results.c.body).where(batch_results.c.batch_id == batch_id)
        )
        assert bodies.all() == [b"right"]


async def test_a_lease_is_renewed_by_the_run_that_holds_it(store: Store) -> None:
    """Who asks learns which of its runs still hold; a renewed one is not taken back."""
    batch_id = await batch_of(store, 2)
    kept, lost = [item.run for item in await claim(store, batch_id, limit=2, lease_s=0)]
    assert await store.batch_queue.renew([kept], lease_s=60) == {kept}
    assert await store.batch_queue.take_back(10) == 1
    await claim(store, batch_id)
    assert await store.batch_queue.renew([lost, kept], lease_s=60) == {kept}
    assert await store.batch_queue.renew([], lease_s=60) == set()


async def test_what_is_given_back_comes_out_again(store: Store) -> None:
    """Unharmed, it was no attempt; and with a pause, it is not handed out before."""
    batch_id = await batch_of(store, 1)
    [first] = await claim(store, batch_id)
    queue = store.batch_queue
    assert await queue.give_back([first.run], is_unharmed=True) == {first.run}
    [second] = await claim(store, batch_id)
    assert second.num_attempts == 1
    assert await queue.give_back([first.run], is_unharmed=False) == set()
    await queue.give_back([second.run], is_unharmed=False, after_s=0.2)
    assert await claim(store, batch_id) == []
    await asyncio.sleep(0.25)
    [third] = await claim(store, batch_id)
    assert third.num_attempts == 2


async def test_an_item_that_kills_its_workers_is_not_handed_out_again(store: Store) -> None:
    """After so many workers died of it, it stays in the queue for somebody to look at."""
    batch_id = await batch_of(store, 1)
    for _ in range(MAX_DEATHS):
        assert await claim(store, batch_id, lease_s=0)
        assert await store.batch_queue.take_back(10) == 1
        await waited(store, batch_id)
    assert await claim(store, batch_id) == []


async def test_what_ran_beside_a_killer_is_apart_from_it_at_the_last_try(store: Store) -> None:
    """After the first death all come out at once, after the second each at a time of its own."""
    batch_id = await batch_of(store, 20)
    assert len(await claim(store, batch_id, limit=20, lease_s=0)) == 20
    await store.batch_queue.take_back(20)
    assert len(await claim(store, batch_id, limit=20, lease_s=0)) == 20
    await store.batch_queue.take_back(20)
    assert len(await claim(store, batch_id, limit=20)) < 10
    query = select(func.count(func.distinct(batch_items.c.run_after)))
    async with store.database.platform() as connection:
        assert await connection.scalar(query.where(batch_items.c.batch_id == batch_id)) == 20


async def test_leases_that_hold_are_not_taken_back(store: Store) -> None:
    """Nothing is taken from a worker whose lease has time left, and no more than asked for."""
    batch_id = await batch_of(store, 3)
    await claim(store, batch_id)
    await claim(store, batch_id, limit=2, lease_s=0)
    assert await store.batch_queue.take_back(1) == 1
    assert await store.batch_queue.take_back(5) == 1
    assert await store.batch_queue.take_back(5) == 0


async def test_a_tenant_sees_its_own_batches_alone(store: Store) -> None:
    """Row-level security hides the items and results of others, whatever the statement says."""
    own, other = await batch_of(store, 2, tenant=0), await batch_of(store, 3, tenant=1)
    [item] = await claim(store, other)
    await store.ledger.insert([row_of(item)])
    assert store.first_start is not None
    tenant_id = store.first_start.keys[0].key.tenant_id
    async with store.database.tenant(tenant_id) as connection:
        seen = await connection.scalars(select(batch_items.c.batch_id).distinct())
        ids = set(seen.all())
        assert own in ids
        assert other not in ids
        assert await connection.scalar(select(func.count()).select_from(batch_results)) == 0
        await connection.execute(text("UPDATE batches SET paused_for = 'mine'"))
    async with store.database.platform() as connection:
        paused = select(batches.c.paused_for).where(batches.c.id == other)
        assert await connection.scalar(paused) is None


async def test_results_that_wait_on_the_disk_are_whole(tmp_path: Path) -> None:
    """A journal that a process left behind gives its rows back with their results."""
    item = ClaimedItem(ItemRun(uuid4(), 7, 2), uuid4(), 0, 1, 1)
    row = row_of(item, body=b'\x00"keyed":{')
    with_none = replace(usage_row(), is_batch=True)
    spool = Spool(tmp_path)
    for one in (row, with_none):
        spool.append(one)
    spool.close()
    assert list(Spool(tmp_path).pending(9)) == [row, with_none]


def test_results_of_an_earlier_release_are_read(tmp_path: Path) -> None:
    """Its journal does not say what an item would have cost as a request."""
    row = replace(row_of(ClaimedItem(ItemRun(uuid4(), 7, 2), uuid4(), 0, 1, 1)), full_nano_usd=9)
    spool = Spool(tmp_path)
    spool.append(row)
    spool.close()
    [path] = tmp_path.glob("*.spool")
    body = path.read_bytes()[9:-1].replace(b',"full_nano_usd":9', b"")
    path.write_bytes(b"%08x %b\n" % (crc32(body), body))
    assert list(Spool(tmp_path).pending(9)) == [replace(row, full_nano_usd=None)]


async def test_a_claim_reads_no_more_than_it_hands_out(store: Store, owner: Database) -> None:
    """Of a batch that is newer than the tables' statistics too, which expect nothing of it."""
    await batch_of(store, 1000)
    async with owner.as_itself() as connection:
        await connection.execute(text("ANALYZE batch_items"))
    batch_id = await batch_of(store, 1000)
    given = {"batch_id": batch_id, "worker_id": WORKER, "limit": 50, "lease_s": 60.0}
    explained = text(f"EXPLAIN (ANALYZE, FORMAT JSON) {_CLAIM.text}")
    async with store.database.platform() as connection:
        [found] = await connection.scalar(explained, given)
    assert most_rows(found["Plan"]) <= 50
