"""The rows of files on a real PostgreSQL: whose they are, when they are seen, when they go."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from sqlalchemy import func, insert, select, update

from gateway.domain.admin import Actor, AdminRole
from gateway.domain.batch import BatchState
from gateway.domain.files import FileDraft, StoredFile, Written, id_time, new_file_id
from gateway.domain.page import PageRequest
from gateway.errors import FileInUse, FileNotFound, StorageFull
from gateway.store import Store
from gateway.store.batch_tables import batches, files
from gateway.store.tables import tenants
from tests.gateway.store import batch_rows
from tests.gateway.store.batch_rows import new_items, num_rows, running_batch, seen

pytestmark = pytest.mark.anyio

MIB = 1 << 20
HASH = bytes(range(32))


def tenant_of(store: Store, which: int = 0) -> UUID:
    assert store.first_start is not None
    return store.first_start.keys[which].key.tenant_id


def draft_of(tenant_id: UUID, **said: object) -> FileDraft:
    fields = {"filename": "a.jsonl", "purpose": "batch", **said}
    return FileDraft(id=new_file_id(datetime.now(UTC)), tenant_id=tenant_id, **fields)  # type: ignore[arg-type]


async def kept(store: Store, tenant_id: UUID, size_bytes: int = MIB, **said: object) -> StoredFile:
    """Make a file that is seen."""
    draft = draft_of(tenant_id, **said)
    await store.files.begin(draft)
    written = Written(size_bytes, HASH)
    return await store.files.complete(tenant_id, draft.id, written, max_stored_bytes=None)


async def read_by_batch(store: Store, file: StoredFile) -> UUID:
    """Make a batch that has not ended."""
    batch_id = uuid4()
    async with store.database.platform() as connection:
        await connection.execute(
            insert(batches).values(
                id=batch_id,
                tenant_id=file.tenant_id,
                key_id=uuid4(),
                endpoint="/v1/completions",
                input_file_id=file.id,
                completion_window_s=86400,
                expires_at=datetime.now(UTC) + timedelta(days=1),
            )
        )
    return batch_id


async def end_batch(store: Store, batch_id: UUID) -> None:
    async with store.database.platform() as connection:
        await connection.execute(
            update(batches).where(batches.c.id == batch_id).values(ended_at=func.now())
        )


async def test_a_file_is_seen_once_it_is_whole(store: Store) -> None:
    """While it is written nobody finds or lists it, nor does it count; then all of it is told."""
    tenant_id = tenant_of(store)
    draft = draft_of(tenant_id, filename="räume.jsonl", purpose="user_data")
    await store.files.begin(draft)
    assert await store.files.get(tenant_id, draft.id) is None
    assert (await store.files.page(tenant_id, PageRequest())).data == []
    assert await store.files.known([draft.id, uuid4()]) == {draft.id}
    written = Written(3 * MIB, HASH)
    file = await store.files.complete(tenant_id, draft.id, written, max_stored_bytes=None)
    made_at = id_time(draft.id)
    assert made_at is not None
    assert file == StoredFile(
        draft.id, tenant_id, "räume.jsonl", "user_data", 3 * MIB, HASH, made_at, None
    )
    assert await store.files.get(tenant_id, draft.id) == file
    assert await store.files.stored_bytes(tenant_id) == 3 * MIB
    assert await store.files.remove(tenant_id, draft.id)
    assert await store.files.get(tenant_id, draft.id) is None
    with pytest.raises(FileNotFound):
        await store.files.complete(tenant_id, draft.id, written, max_stored_bytes=None)


async def test_a_file_is_its_tenants_alone(store: Store) -> None:
    """Another tenant cannot find, list, end or remove it, nor does SQL show it one."""
    ours, theirs = tenant_of(store, 0), tenant_of(store, 1)
    file = await kept(store, ours)
    draft = draft_of(ours)
    await store.files.begin(draft)
    assert await store.files.get(theirs, file.id) is None
    assert (await store.files.page(theirs, PageRequest())).data == []
    assert not await store.files.remove(theirs, file.id)
    assert await store.files.stored_bytes(theirs) == 0
    with pytest.raises(FileNotFound):
        await store.files.complete(theirs, draft.id, Written(1, HASH), max_stored_bytes=None)
    async with store.database.tenant(theirs) as connection:
        assert (await connection.execute(select(files.c.id))).all() == []
        taken = update(files).values(tenant_id=theirs)
        assert (await connection.execute(taken)).rowcount == 0
    async with store.database.tenant(ours) as connection:
        seen = set((await connection.execute(select(files.c.id))).scalars())
    assert seen == {file.id, draft.id}


async def test_files_are_listed_in_pages_that_hold_still(store: Store) -> None:
    """The newest come first unless asked otherwise; what is removed meanwhile moves nothing."""
    tenant_id = tenant_of(store)
    made = [await kept(store, tenant_id, purpose=purpose) for purpose in ("batch", "user_data") * 3]
    first = await store.files.page(tenant_id, PageRequest(limit=2))
    assert list(first.data) == [made[5], made[4]]
    await store.files.remove(tenant_id, made[4].id)
    second = await store.files.page(tenant_id, PageRequest(limit=9, after=first.next))
    assert (list(second.data), second.next) == ([made[3], made[2], made[1], made[0]], None)
    chosen = await store.files.page(
        tenant_id, PageRequest(limit=2), purpose="user_data", is_ascending=True
    )
    assert list(chosen.data) == [made[1], made[3]]
    assert chosen.next is not None


async def test_a_tenant_stores_no_more_than_it_may(store: Store) -> None:
    """Of many files that end at once as many are kept as there is room for."""
    tenant_id = tenant_of(store)
    drafts = [draft_of(tenant_id) for _ in range(24)]
    # At once, so that there are as many connections as there may be.
    await asyncio.gather(*map(store.files.begin, drafts))
    ended = await asyncio.gather(
        *(
            store.files.complete(
                tenant_id, draft.id, Written(MIB, HASH), max_stored_bytes=5 * MIB + 1
            )
            for draft in drafts
        ),
        return_exceptions=True,
    )
    assert [type(one) for one in ended if isinstance(one, Exception)] == [StorageFull] * 19
    assert await store.files.stored_bytes(tenant_id) == 5 * MIB
    other = draft_of(tenant_of(store, 1))
    await store.files.begin(other)
    await store.files.complete(
        other.tenant_id, other.id, Written(MIB, HASH), max_stored_bytes=5 * MIB
    )


async def test_a_small_file_counts_for_more_than_it_has(store: Store) -> None:
    """A file takes a row and a name, whatever it holds."""
    tenant_id = tenant_of(store)
    await kept(store, tenant_id, size_bytes=1)
    assert await store.files.stored_bytes(tenant_id) == 64 << 10
    draft = draft_of(tenant_id)
    await store.files.begin(draft)
    with pytest.raises(StorageFull):
        await store.files.complete(
            tenant_id, draft.id, Written(1, HASH), max_stored_bytes=(128 << 10) - 1
        )


async def test_what_a_batch_reads_stays(store: Store) -> None:
    """Neither its tenant nor its own end removes an input before the batch has ended."""
    tenant_id = tenant_of(store)
    file = await kept(store, tenant_id, expires_at=datetime.now(UTC) + timedelta(days=1))
    batch_id = await read_by_batch(store, file)
    with pytest.raises(FileInUse):
        await store.files.remove(tenant_id, file.id)
    await expire(store, file)
    assert await store.files.sweep(10, unready_for_s=60) == ()
    await end_batch(store, batch_id)
    assert list(await store.files.sweep(10, unready_for_s=60)) == [file.id]


async def test_a_batch_and_the_removal_of_its_file_see_each_other(store: Store) -> None:
    """Who removes a file waits for whoever is just making a batch of it, and then finds that."""
    tenant_id = tenant_of(store)
    file = await kept(store, tenant_id)
    async with store.database.tenant(tenant_id) as connection:
        held = select(files.c.id).where(files.c.id == file.id)
        await connection.execute(held.with_for_update(read=True, key_share=True))
        removing = asyncio.create_task(store.files.remove(tenant_id, file.id))
        while not await _is_waited_for(store):
            await asyncio.sleep(0.01)
        assert not removing.done()
        await connection.execute(
            insert(batches).values(
                id=uuid4(),
                tenant_id=tenant_id,
                key_id=uuid4(),
                endpoint="/v1/completions",
                input_file_id=file.id,
                completion_window_s=86400,
                expires_at=datetime.now(UTC) + timedelta(days=1),
            )
        )
    with pytest.raises(FileInUse):
        await removing


async def test_a_sweep_forgets_what_expired_and_what_died(store: Store) -> None:
    """Expired files are not seen even before it; an upload that may still run is left alone."""
    tenant_id = tenant_of(store)
    lasting = await kept(store, tenant_id, expires_at=datetime.now(UTC) + timedelta(days=1))
    expired = await kept(store, tenant_id, expires_at=datetime.now(UTC) + timedelta(days=1))
    await expire(store, expired)
    died, running = draft_of(tenant_id), draft_of(tenant_id)
    await store.files.begin(died)
    await store.files.begin(running)
    async with store.database.platform() as connection:
        old = {"created_at": datetime.now(UTC) - timedelta(hours=2)}
        await connection.execute(update(files).where(files.c.id == died.id).values(old))
    assert await store.files.get(tenant_id, expired.id) is None
    assert [file.id for file in (await store.files.page(tenant_id, PageRequest())).data] == [
        lasting.id
    ]
    gone = [*await store.files.sweep(1, unready_for_s=3600)]
    assert len(gone) == 1
    gone += await store.files.sweep(10, unready_for_s=3600)
    assert sorted(gone) == sorted([expired.id, died.id])
    assert await store.files.known([lasting.id, running.id, died.id]) == {lasting.id, running.id}


async def test_files_of_an_archived_tenant_go(store: Store) -> None:
    """Nobody could ever remove one; what its batches read goes once they have ended."""
    mine = tenant_of(store)
    other, free = await kept(store, tenant_of(store, 1)), await kept(store, mine)
    read = await kept(store, mine)
    batch_id = await read_by_batch(store, read)
    await archive(store, mine)
    assert set(await store.files.sweep(10, unready_for_s=3600)) == {free.id, read.id}
    assert await store.files.known([other.id, free.id, read.id]) == {other.id}
    stopped = await store.batches.get(mine, batch_id)
    assert stopped is not None
    assert stopped.state is BatchState.CANCELLED


async def test_batches_of_an_archived_tenant_are_cancelled(store: Store) -> None:
    """Nothing of them runs until their windows pass, and nothing is left of what was validated."""
    mine = tenant_of(store)
    running = await running_batch(store, 3)
    new = await batch_rows.draft_of(store)
    await store.batches.create(new)
    await store.batch_steps.add_items(new.id, new_items(3))
    await archive(store, mine)
    assert await store.batches.open_batches() == []
    assert (await seen(store, running)).state is BatchState.CANCELLING
    assert (await seen(store, new)).state is BatchState.CANCELLED
    assert await num_rows(store, new) == 0
    assert await store.batch_steps.drop() == 3


async def archive(store: Store, tenant_id: UUID) -> None:
    async with store.database.platform() as connection:
        row = (await connection.execute(select(tenants).where(tenants.c.id == tenant_id))).one()
    actor = Actor("owner", AdminRole.OWNER)
    assert await store.tenant_archive.archive(actor, row.organisation_id, row.name) is not None


async def expire(store: Store, file: StoredFile) -> None:
    async with store.database.platform() as connection:
        past = {"expires_at": datetime.now(UTC) - timedelta(seconds=1)}
        await connection.execute(update(files).where(files.c.id == file.id).values(past))


async def _is_waited_for(store: Store) -> bool:
    """Tell whether a transaction waits for another."""
    async with store.database.platform() as connection:
        waiting = await connection.exec_driver_sql("SELECT 1 FROM pg_locks WHERE NOT granted")
        return waiting.first() is not None
