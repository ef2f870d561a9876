"""What a tenant does with its files.

An upload's bytes are stored first and its row is made after them, as a form may say what a file is
for behind the file. What a crash leaves in between has no row and is swept (see `upkeep`).

What a tenant may store is looked at three times: before anything of an upload is read; while it
comes, together with the tenant's other uploads here; and by the store as it becomes a file, where
gateways meet. So a tenant is ahead of its limit by what comes at other gateways at most.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from gateway.domain.files import (
    BATCH_INPUT,
    MAX_BATCH_INPUT_BYTES,
    MAX_FILE_BYTES,
    PURPOSES,
    FileDraft,
    StoredFile,
    Written,
    id_time,
    new_file_id,
)
from gateway.domain.page import Page, PageRequest
from gateway.errors import FileNotFound, FileTooLarge, GatewayError, InvalidRequest, StorageFull
from gateway.ports import Clock, FileStorage, FileStore
from gateway.services.files.places import Places

logger = logging.getLogger(__name__)

UPLOADS_OF_TENANT, UPLOADS_IN_ALL = 4, 32
DOWNLOADS_OF_TENANT, DOWNLOADS_IN_ALL = 8, 64
# What a form has beside its file, generously.
_FORM_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class UploadSaid:
    """Hold what an upload says of its file; `expires_after_s` counts from when it is made."""

    filename: str
    purpose: str
    expires_after_s: int | None = None


class FileService:
    """Keep the files of tenants, `max_stored_bytes` of each.

    `owner_of` names a tenant's organisation, which leaves places to others.
    """

    def __init__(
        self,
        files: FileStore,
        storage: FileStorage,
        *,
        max_stored_bytes: int,
        owner_of: Callable[[UUID], UUID] | None = None,
        clock: Clock = time,
    ) -> None:
        self._files = files
        self._storage = storage
        self._max_stored_bytes = max_stored_bytes
        self._clock = clock
        self.uploads = Places(
            "uploads", of_tenant=UPLOADS_OF_TENANT, in_all=UPLOADS_IN_ALL, owner_of=owner_of
        )
        self.downloads = Places(
            "downloads", of_tenant=DOWNLOADS_OF_TENANT, in_all=DOWNLOADS_IN_ALL, owner_of=owner_of
        )
        self._coming_bytes: defaultdict[UUID, int] = defaultdict(int)

    async def upload(
        self,
        tenant_id: UUID,
        chunks: AsyncIterable[bytes],
        said: Callable[[], UploadSaid],
        *,
        told_bytes: int | None = None,
    ) -> StoredFile:
        """Store what comes as a file; if this raises there is none.

        `said` is asked once all has come; `told_bytes` is how long the whole form is said to be.
        Raises: `FileTooLarge`, `StorageFull`; `InvalidRequest`: there is nothing in it;
        `TenantLimited`, `Overloaded`: too many are under way; what `chunks` and `said` raise.
        """
        with self.uploads.held(tenant_id):
            room_bytes = self._max_stored_bytes - await self._files.stored_bytes(tenant_id)
            if max(told_bytes or 0, _FORM_BYTES) - _FORM_BYTES >= room_bytes:
                raise StorageFull
            file_id = new_file_id(datetime.fromtimestamp(self._clock.time(), UTC))
            with self._coming(tenant_id, room_bytes) as count:
                written = await self._storage.write(
                    file_id, _counted(chunks, count), max_bytes=MAX_FILE_BYTES
                )
                may_be_whole = False
                try:
                    await self._files.begin(_draft(tenant_id, file_id, written, said()))
                    may_be_whole = True
                    return await self._files.complete(
                        tenant_id, file_id, written, max_stored_bytes=self._max_stored_bytes
                    )
                except BaseException:
                    await self._forget(tenant_id, file_id, may_be_whole=may_be_whole)
                    raise

    async def get(self, tenant_id: UUID, file_id: UUID) -> StoredFile:
        """Return a file. Raises: `FileNotFound`."""
        file = await self._files.get(tenant_id, file_id)
        if file is None:
            raise FileNotFound
        return file

    async def page(
        self,
        tenant_id: UUID,
        *,
        limit: int,
        after: UUID | None = None,
        purpose: str | None = None,
        is_ascending: bool = False,
    ) -> Page[StoredFile]:
        """Return files, the newest first; those after one that may have been removed meanwhile.

        Raises: `FileNotFound`: `after` was never a file.
        """
        cursor = None
        if after is not None:
            file = await self._files.get(tenant_id, after)
            made_at = id_time(after) if file is None else file.created_at
            if made_at is None:
                raise FileNotFound(param="after")
            cursor = (made_at.isoformat(), str(after))
        if purpose is not None and purpose not in PURPOSES:
            return Page([])
        return await self._files.page(
            tenant_id, PageRequest(limit, cursor), purpose=purpose, is_ascending=is_ascending
        )

    @asynccontextmanager
    async def opened(
        self, file: StoredFile, *, offset_bytes: int, size_bytes: int
    ) -> AsyncGenerator[AsyncGenerator[bytes, None], None]:
        """Hand out a part of a file, in chunks of at most 1 MiB.

        Raises: `TenantLimited`, `Overloaded`: too many are under way; `StorageUnavailable`.
        """
        with self.downloads.held(file.tenant_id):
            chunks = self._storage.read(file.id, offset_bytes=offset_bytes, size_bytes=size_bytes)
            try:
                yield chunks
            finally:
                await chunks.aclose()

    async def delete(self, tenant_id: UUID, file_id: UUID) -> None:
        """Remove a file. Raises: `FileNotFound`, `FileInUse`."""
        await self.get(tenant_id, file_id)
        if not await self._files.remove(tenant_id, file_id):
            raise FileNotFound
        await self._remove_bytes(file_id)

    @contextmanager
    def _coming(self, tenant_id: UUID, room_bytes: int) -> Iterator[Callable[[int], None]]:
        """Count what comes of a tenant; what counts raises `StorageFull` beyond `room_bytes`."""
        taken_bytes = 0

        def count(num_bytes: int) -> None:
            nonlocal taken_bytes
            taken_bytes += num_bytes
            self._coming_bytes[tenant_id] += num_bytes
            if self._coming_bytes[tenant_id] > room_bytes:
                raise StorageFull

        try:
            yield count
        finally:
            self._coming_bytes[tenant_id] -= taken_bytes
            if not self._coming_bytes[tenant_id]:
                del self._coming_bytes[tenant_id]

    async def _forget(self, tenant_id: UUID, file_id: UUID, *, may_be_whole: bool) -> None:
        """Undo an upload; what cannot be undone now is swept.

        A database that went away as the file became whole may have it: its bytes stay then.
        """
        try:
            await self._files.remove(tenant_id, file_id)
        except GatewayError as exc:
            logger.warning("the row of a file that was given up is left to be swept: %s", exc)
            if may_be_whole:
                return
        await self._remove_bytes(file_id)

    async def _remove_bytes(self, file_id: UUID) -> None:
        try:
            await self._storage.remove([file_id])
        except GatewayError as exc:
            logger.warning("the bytes of file %s are left to be swept: %s", file_id.hex, exc)


def _draft(tenant_id: UUID, file_id: UUID, written: Written, said: UploadSaid) -> FileDraft:
    """Return the file that an upload is to be. Raises: `InvalidRequest`, `FileTooLarge`."""
    if not written.size_bytes:
        raise InvalidRequest("The file is empty.", param="file", code="empty_file")
    if said.purpose == BATCH_INPUT and written.size_bytes > MAX_BATCH_INPUT_BYTES:
        raise batch_input_too_large()
    expires_at = None
    if said.expires_after_s is not None:
        made_at = id_time(file_id)
        assert made_at is not None, "ids of uploads tell it"
        expires_at = made_at + timedelta(seconds=said.expires_after_s)
    return FileDraft(file_id, tenant_id, said.filename, said.purpose, expires_at)


def batch_input_too_large() -> FileTooLarge:
    """Say how long the input of a batch may be."""
    return FileTooLarge(
        f"A file for a batch may have {MAX_BATCH_INPUT_BYTES} bytes at most.", param="file"
    )


async def _counted(
    chunks: AsyncIterable[bytes], count: Callable[[int], None]
) -> AsyncGenerator[bytes, None]:
    async for chunk in chunks:
        count(len(chunk))
        yield chunk
