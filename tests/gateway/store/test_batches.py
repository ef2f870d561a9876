"""Batches on a real PostgreSQL: what tenants ask for."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import uuid4

import pytest
from sqlalchemy import delete, text

from gateway.domain.batch import BatchState, PausedFor
from gateway.domain.page import PageRequest
from gateway.errors import FileNotFound, TenantLimited
from gateway.store import Store
from gateway.store.batch_tables import files
from tests.gateway.store.batch_rows import (
    alter,
    claimed,
    draft_of,
    ended,
    key_of,
    new_items,
    num_rows,
    running_batch,
    seen,
    stored_file,
)

pytestmark = pytest.mark.anyio


async def test_a_new_batch_waits_to_be_validated(store: Store) -> None:
    """It says what was asked for, counts nothing yet, and expires after its window."""
    draft = await draft_of(
        store, metadata={"for": "a test"}, completion_window_s=3600, output_expires_after_s=7200
    )
    made = await store.batches.create(draft)
    assert made == await seen(store, draft)
    assert (made.draft, made.state) == (draft, BatchState.VALIDATING)
    assert (made.expires_at - made.created_at).total_seconds() == 3600
    assert (made.num_items, made.enqueued_tokens, made.ended_at) == (0, 0, None)


async def test_an_idempotency_key_makes_one_batch(store: Store) -> None:
    """Many at once with one key are one batch, also once its input is gone; it is the tenant's."""
    draft = await draft_of(store, idempotency_key="once")
    tries = [replace(draft, id=uuid4()) for _ in range(6)]
    made = await asyncio.gather(*(store.batches.create(one) for one in tries))
    assert len({batch.id for batch in made}) == 1
    async with store.database.platform() as connection:
        await connection.execute(delete(files).where(files.c.id == draft.input_file_id))
    again = await store.batches.create(replace(draft, id=uuid4()))
    assert again.id == made[0].id
    other = await draft_of(store, tenant=1, idempotency_key="once")
    assert (await store.batches.create(other)).id == other.id


@pytest.mark.parametrize("whose", ["nobody's", "another's", "not ready", "expired"])
async def test_the_input_must_be_a_file_of_the_tenant(store: Store, whose: str) -> None:
    """Another tenant's file, one that is not whole and one that has expired are all not there."""
    draft = await draft_of(store)
    if whose == "nobody's":
        draft = replace(draft, input_file_id=uuid4())
    elif whose == "another's":
        draft = replace(draft, input_file_id=await stored_file(store, tenant=1))
    else:
        values = "false" if whose == "not ready" else "true"
        async with store.database.platform() as connection:
            await connection.exec_driver_sql(
                f"UPDATE files SET is_ready = {values}, expires_at = now() "
                f"WHERE id = '{draft.input_file_id}'"
            )
    with pytest.raises(FileNotFound):
        await store.batches.create(draft)
    assert await store.batches.get(draft.tenant_id, draft.id) is None


async def test_a_batch_waits_for_who_removes_its_input(store: Store) -> None:
    """Made while its file is being removed, it is told that there is none once that is done."""
    draft = await draft_of(store)
    async with store.database.platform() as removing:
        await removing.execute(delete(files).where(files.c.id == draft.input_file_id))
        making = asyncio.create_task(store.batches.create(draft))
        await asyncio.wait([making], timeout=0.3)
    with pytest.raises(FileNotFound):
        await making


async def test_open_batches_are_bounded_a_tenant(store: Store) -> None:
    """One more than the bound is refused until one has ended; another tenant is not asked."""
    for _ in range(2):
        await store.batches.create(await draft_of(store), max_batches=2)
    third = await draft_of(store)
    with pytest.raises(TenantLimited, match="2 batches"):
        await store.batches.create(third, max_batches=2)
    await store.batches.create(await draft_of(store, tenant=1), max_batches=2)
    [first, *_] = (await store.batches.page(third.tenant_id, PageRequest())).data
    await store.batches.cancel(first.tenant_id, first.id)
    await store.batches.create(third, max_batches=2)


async def test_batches_are_listed_newest_first(store: Store) -> None:
    """A page goes on after the last one's end, and shows the tenant's own alone."""
    made = [(await store.batches.create(await draft_of(store))).id for _ in range(5)]
    await store.batches.create(await draft_of(store, tenant=1))
    tenant_id = key_of(store).tenant_id
    first = await store.batches.page(tenant_id, PageRequest(limit=3))
    rest = await store.batches.page(tenant_id, PageRequest(limit=3, after=first.next))
    assert [batch.id for batch in (*first.data, *rest.data)] == made[::-1]
    assert rest.next is None


async def test_another_tenants_batch_is_not_there(store: Store) -> None:
    """Neither looking at it nor cancelling it tells that it exists, nor changes it."""
    batch = await running_batch(store, 2)
    stranger = key_of(store, tenant=1).tenant_id
    assert await store.batches.get(stranger, batch.id) is None
    assert await store.batches.cancel(stranger, batch.id) is None
    assert await seen(store, batch) == batch


async def test_cancelling_what_is_not_validated_ends_it(store: Store) -> None:
    """It is over at once, with nothing left of what had been added of it."""
    draft = await draft_of(store)
    await store.batches.create(draft)
    await store.batch_steps.add_items(draft.id, new_items(3))
    batch = await store.batches.cancel(draft.tenant_id, draft.id)
    assert batch is not None
    assert (batch.state, batch.num_items) == (BatchState.CANCELLED, 0)
    assert batch.cancelling_at == batch.ended_at is not None
    await store.batch_steps.add_items(draft.id, new_items(3))
    assert await num_rows(store, draft) == 0
    assert not await store.batch_steps.start(draft.id, {})
    assert not await store.batch_steps.hold(draft.id, lease_s=60)


async def test_cancelling_is_said_at_once_and_once(store: Store) -> None:
    """It is cancelling from then on, hands out nothing, and to cancel it again changes nothing."""
    batch = await running_batch(store, 3)
    first = await store.batches.cancel(batch.tenant_id, batch.id)
    assert first is not None
    assert first.state is BatchState.CANCELLING
    assert await store.batches.cancel(batch.tenant_id, batch.id) == first
    assert await store.batch_queue.claim(batch.id, uuid4(), limit=9, lease_s=60) == []
    assert await store.batches.open_batches() == []


async def test_a_pause_is_seen_and_hands_out_nothing(store: Store) -> None:
    """Its reason is part of the batch, which stays open, and goes away with it."""
    batch = await running_batch(store, 1)
    other = await running_batch(store, 1)
    told = {batch.id: "Line 3: no, for \x00.", other.id: None}
    await store.batches.pause(told, PausedFor.BUDGET)
    paused = await seen(store, batch)
    assert (paused.paused_for, paused.errors) == (PausedFor.BUDGET, [])
    assert paused.paused_because == "Line 3: no, for \N{REPLACEMENT CHARACTER}."
    paused = await seen(store, other)
    assert (paused.paused_for, paused.paused_because) == (PausedFor.BUDGET, None)
    assert {one.id for one in await store.batches.open_batches()} == set(told)
    assert await store.batch_queue.claim(batch.id, uuid4(), limit=1, lease_s=60) == []
    await store.batches.pause({batch.id: None}, None)
    assert await seen(store, batch) == batch
    assert len(await store.batch_queue.claim(batch.id, uuid4(), limit=1, lease_s=60)) == 1
    stopped = await store.batches.cancel(other.tenant_id, other.id)
    assert stopped is not None
    assert stopped.paused_for is None


async def test_open_batches_have_something_to_hand_out(store: Store) -> None:
    """One that waits for validation, is past its window or is over is not among them."""
    await store.batches.create(await draft_of(store))
    late, good = await running_batch(store, 1), await running_batch(store, 1)
    await alter(store, "batches", "expires_at = now()", late)
    assert [batch.id for batch in await store.batches.open_batches()] == [good.id]


async def test_open_batches_are_read_in_parts(store: Store) -> None:
    """All of them are there, each once, without what their tenants alone look at."""
    batch = await running_batch(store, 1, metadata={"run": "nightly"})
    copies = text(
        """
        INSERT INTO batches (id, tenant_id, key_id, endpoint, state, input_file_id,
            completion_window_s, metadata, num_items, expires_at)
        SELECT gen_random_uuid(), tenant_id, key_id, endpoint, state, input_file_id,
            completion_window_s, metadata, num_items, expires_at
        FROM batches, generate_series(1, 200)
        """
    )
    async with store.database.platform() as connection:
        await connection.execute(copies)
    found = await store.batches.open_batches()
    assert len({one.id for one in found}) == len(found) == 201
    [own] = [one for one in found if one.id == batch.id]
    assert own == replace(batch, draft=replace(batch.draft, metadata=None))


async def test_answers_count_as_stored_until_they_are_files(store: Store) -> None:
    """Beside the files of tenants with open batches, each at its bytes."""
    batch = await running_batch(store, 2)
    await running_batch(store, 1, tenant=1)
    await ended(store, await claimed(store, batch, limit=2))
    # An input counts 64 KiB at least; the answers are `{"line":1}` and `{"line":2}`.
    assert await store.batches.full_tenants((64 << 10) + 20) == [batch.tenant_id]
    assert await store.batches.full_tenants((64 << 10) + 21) == []
    assert len(await store.batches.full_tenants(64 << 10)) == 2
    await store.batch_steps.to_finalize(1, lease_s=60)
    assert await store.batch_steps.finish(batch.id, output=None, error=None)
    assert await store.batches.full_tenants(64 << 10) != [batch.tenant_id]
