"""Files with stores that fail or fill at the worst moment, over a real PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from sqlalchemy import func, select, update

from gateway.domain.files import StoredFile, Written
from gateway.errors import FileNotFound, StorageFull, StorageUnavailable, StoreUnavailable
from gateway.services.files import FileService, FileUpkeep, UploadSaid
from gateway.store import Store
from gateway.store.batch_tables import files as file_rows
from gateway.store.file_storage import DirectoryStorage
from gateway.store.files import SqlFiles

pytestmark = pytest.mark.anyio

MIB = 1 << 20
SAID = UploadSaid("a.jsonl", "batch", 3600)


async def coming(size_bytes: int) -> AsyncIterator[bytes]:
    while size_bytes > 0:
        yield bytes(min(size_bytes, 64 << 10))
        size_bytes -= 64 << 10


def tenant_of(store: Store) -> UUID:
    assert store.first_start is not None
    return store.first_start.keys[0].key.tenant_id


async def stored_ids(storage: object) -> set[UUID]:
    """Ask a storage for all that it has, and remove nothing."""
    found: set[UUID] = set()

    async def all_known(file_ids: Collection[UUID]) -> Collection[UUID]:
        found.update(file_ids)
        return file_ids

    await storage.sweep(older_than_s=-60, is_known=all_known)  # type: ignore[attr-defined]
    return found


async def num_rows(store: Store) -> int:
    async with store.database.platform() as connection:
        return int(await connection.scalar(select(func.count()).select_from(file_rows)) or 0)


class Full(SqlFiles):
    """As if another gateway had filled the tenant's storage meanwhile."""

    async def complete(
        self, tenant_id: UUID, file_id: UUID, written: Written, *, max_stored_bytes: int | None
    ) -> StoredFile:
        raise StorageFull


class Away(SqlFiles):
    """A database that goes away between the bytes and the row."""

    async def begin(self, draft: object) -> None:
        raise StoreUnavailable

    async def remove(self, tenant_id: UUID, file_id: UUID) -> bool:
        raise StoreUnavailable


@pytest.mark.parametrize("files", [Full, Away])
async def test_what_the_store_refuses_leaves_no_bytes(store: Store, files: type[SqlFiles]) -> None:
    """A file that is written and does not become one is neither on the disk nor a row."""
    service = FileService(files(store.database), store.file_storage, max_stored_bytes=8 * MIB)
    with pytest.raises((StorageFull, StoreUnavailable)):
        await service.upload(tenant_of(store), coming(MIB), lambda: SAID)
    assert await stored_ids(store.file_storage) == set()
    assert await num_rows(store) == 0


class Gone(SqlFiles):
    """A database that goes away as it has committed what it was asked for."""

    async def complete(
        self, tenant_id: UUID, file_id: UUID, written: Written, *, max_stored_bytes: int | None
    ) -> StoredFile:
        await super().complete(tenant_id, file_id, written, max_stored_bytes=max_stored_bytes)
        raise StoreUnavailable

    async def remove(self, tenant_id: UUID, file_id: UUID) -> bool:
        raise StoreUnavailable


async def test_a_file_that_may_be_whole_keeps_its_bytes(store: Store) -> None:
    """Whoever lists it reads it, though its upload was told that it failed."""
    service = FileService(Gone(store.database), store.file_storage, max_stored_bytes=8 * MIB)
    with pytest.raises(StoreUnavailable):
        await service.upload(tenant_of(store), coming(MIB), lambda: SAID)
    [file] = (await service.page(tenant_of(store), limit=9)).data
    async with service.opened(file, offset_bytes=0, size_bytes=file.size_bytes) as chunks:
        assert sum([len(chunk) async for chunk in chunks]) == MIB


async def test_what_cannot_be_removed_now_is_swept(store: Store) -> None:
    """A storage that is away keeps no file from being deleted, only its bytes for a while."""

    class AwayStorage(DirectoryStorage):
        async def remove(self, file_ids: Collection[UUID]) -> None:
            raise StorageUnavailable

    storage = store.file_storage
    tenant_id = tenant_of(store)
    made = FileService(store.files, storage, max_stored_bytes=8 * MIB)
    file = await made.upload(tenant_id, coming(MIB), lambda: SAID)
    away = AwayStorage(storage._root)  # type: ignore[attr-defined]
    await FileService(store.files, away, max_stored_bytes=8 * MIB).delete(tenant_id, file.id)
    away.close()
    with pytest.raises(FileNotFound):
        await made.get(tenant_id, file.id)
    assert await stored_ids(storage) == {file.id}
    assert await FileUpkeep(store.files, storage).sweep_orphans(older_than_s=-60) == 1
    assert await stored_ids(storage) == set()


async def test_an_expired_file_goes_with_its_bytes(store: Store) -> None:
    """The sweep of every minute removes it; one that lives is left alone."""
    tenant_id = tenant_of(store)
    service = FileService(store.files, store.file_storage, max_stored_bytes=8 * MIB)
    expired, lasting = [
        await service.upload(tenant_id, coming(MIB), lambda: SAID) for _ in range(2)
    ]
    assert expired.expires_at == expired.created_at + timedelta(hours=1)
    async with store.database.platform() as connection:
        past = {"expires_at": datetime.now(UTC) - timedelta(seconds=1)}
        await connection.execute(update(file_rows).where(file_rows.c.id == expired.id).values(past))
    assert await FileUpkeep(store.files, store.file_storage).sweep_rows() == 1
    assert await stored_ids(store.file_storage) == {lasting.id}


async def test_uploads_that_come_at_once_share_the_room(store: Store) -> None:
    """Bytes on their way count, so that several cannot each have all that is left."""
    tenant_id = tenant_of(store)
    service = FileService(store.files, store.file_storage, max_stored_bytes=3 * MIB)
    seen: list[int] = []

    async def beside() -> AsyncIterator[bytes]:
        async for chunk in coming(2 * MIB):
            yield chunk
        with pytest.raises(StorageFull):
            await service.upload(tenant_id, counted(coming(2 * MIB)), lambda: SAID)

    async def counted(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for chunk in chunks:
            seen.append(len(chunk))
            yield chunk

    await service.upload(tenant_id, beside(), lambda: SAID)
    assert sum(seen) <= MIB + (64 << 10)
    assert await store.files.stored_bytes(tenant_id) == 2 * MIB
