"""The bytes of files in an object store, as fsspec shows it: S3, and what speaks as S3 does.

Each is an object under `PREFIX/ID`. One that is being written is seen by nobody: its parts become
an object once all of them are there. What a process that died was sending is the object store's to
forget, which for S3 is a lifecycle rule that aborts incomplete multipart uploads.

fsspec's calls block, so they are made on threads. Whatever they raise is an outage.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncGenerator, AsyncIterable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from gateway.domain.files import Written
from gateway.errors import StoredFileMissing
from gateway.ports import IsKnown
from gateway.store.file_storage import StorageThreads, write_part

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

# Of an upload, and of what is read by one request. S3 takes parts of 5 MiB at least.
_PART_BYTES: Final = 8 << 20
_CHUNK_BYTES: Final = 1 << 20
_ASK_FILES: Final = 1000


class ObjectStorage:
    """Implement `FileStorage` over a file system of fsspec that lists what it has now."""

    def __init__(self, objects: AbstractFileSystem, prefix: str) -> None:
        self._objects = objects
        self._prefix = prefix.rstrip("/")
        self._threads = StorageThreads(outages=(Exception,))

    def close(self) -> None:
        """Begin nothing more."""
        self._threads.close()

    async def write(
        self, file_id: UUID, chunks: AsyncIterable[bytes], *, max_bytes: int
    ) -> Written:
        upload = _Upload(self._objects, self._place(file_id))
        return await write_part(self._threads, upload, chunks, max_bytes=max_bytes)

    async def read(
        self, file_id: UUID, *, offset_bytes: int = 0, size_bytes: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        whole_bytes = await self._threads.run(self._size, file_id)
        end = whole_bytes if size_bytes is None else min(whole_bytes, offset_bytes + size_bytes)
        while offset_bytes < end:
            upto = min(end, offset_bytes + _CHUNK_BYTES)
            cat = partial(self._objects.cat_file, self._place(file_id))
            chunk: bytes = await self._threads.run(cat, offset_bytes, upto)
            offset_bytes += len(chunk)
            yield chunk

    async def remove(self, file_ids: Collection[UUID]) -> None:
        await self._threads.run(self._remove, file_ids)

    async def sweep(self, *, older_than_s: float, is_known: IsKnown) -> int:
        old = await self._threads.run(self._written_before, time.time() - older_than_s)
        num_removed = 0
        for first in range(0, len(old), _ASK_FILES):
            asked = old[first : first + _ASK_FILES]
            unknown = set(asked) - set(await is_known(asked))
            await self.remove(unknown)
            num_removed += len(unknown)
        return num_removed

    def _place(self, file_id: UUID) -> str:
        return f"{self._prefix}/{file_id.hex}"

    def _size(self, file_id: UUID) -> int:
        try:
            return int(self._objects.size(self._place(file_id)))
        except FileNotFoundError:
            raise StoredFileMissing(detail=f"the storage has no file {file_id.hex}") from None

    def _remove(self, file_ids: Collection[UUID]) -> None:
        for file_id in file_ids:
            with suppress(FileNotFoundError):
                self._objects.rm_file(self._place(file_id))

    def _written_before(self, before_s: float) -> Sequence[UUID]:
        found: Mapping[str, Mapping[str, Any]] = {}
        with suppress(FileNotFoundError):
            found = self._objects.find(self._prefix, detail=True)
        old = []
        for name, told in found.items():
            with suppress(ValueError):
                file_id = UUID(name.rpartition("/")[2])
                if _written_s(told) <= before_s:
                    old.append(file_id)
        return old


class _Upload:
    """An object that is being written; its methods block."""

    def __init__(self, objects: AbstractFileSystem, place: str) -> None:
        self._objects = objects
        self._place = place
        self._file: Any = None
        self._is_placed = False
        self._size_bytes = 0
        self._hash = hashlib.sha256()

    def open(self) -> None:
        self._file = self._objects.open(self._place, "wb", block_size=_PART_BYTES, autocommit=False)

    def write(self, pieces: Sequence[bytes]) -> None:
        for piece in pieces:
            self._hash.update(piece)
            self._size_bytes += len(piece)
            self._file.write(piece)

    def keep(self) -> Written:
        self._file.close()
        self._file.commit()
        self._is_placed = True
        return Written(self._size_bytes, self._hash.digest())

    def discard(self) -> None:
        if self._is_placed:
            self._objects.rm_file(self._place)
        elif self._file is not None:
            self._file.discard()


def _written_s(told: Mapping[str, Any]) -> float:
    """Return when an object was written, in the word that its file system has for that."""
    at = told.get("LastModified") or told.get("mtime") or told.get("created") or time.time()
    return at.timestamp() if isinstance(at, datetime) else float(at)
