"""The bytes of files in a directory, which several gateways may share.

A file lies under its id, in one of 256 directories by the last two digits of that: the first tell
the time. It is written under another name beside it and renamed once all of it is on the disk, so
that whoever finds it finds it whole. What a process that died was writing has that other name
alone, and `sweep` removes it. Links are not followed, and nobody but this process's user may read.

Everything that touches the disk is done on threads of its own: a disk that has stopped answering
takes those and no others. Where it runs out of room is an outage of the storage. It is called full
while there is still room on it for what else the machine keeps there: the journal, the database.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Final, Protocol, TypeVar
from uuid import UUID, uuid4

from gateway.domain.files import Written
from gateway.errors import FileTooLarge, GatewayError, StorageUnavailable, StoredFileMissing
from gateway.ports import IsKnown

R = TypeVar("R")

# A chunk that is read, and what is gathered before it is written.
CHUNK_BYTES: Final = 256 << 10
MIN_FREE_BYTES: Final = 1 << 30
# Twice as many as one tenant's uploads can have at once.
NUM_THREADS: Final = 8
# What is synced at a time: to sync all of a file at its end would hold a thread, and others' writes
# to the disk, for as long as that takes.
_SYNC_BYTES: Final = 16 << 20
_ASK_FILES: Final = 1000
_PART: Final = ".part"


class DirectoryStorage:
    """Implement `FileStorage` below `root`, which is made when the first file is."""

    def __init__(self, root: Path, *, min_free_bytes: int = MIN_FREE_BYTES) -> None:
        self._root = root
        self._min_free_bytes = min_free_bytes
        self._threads = StorageThreads()

    def close(self) -> None:
        """Begin nothing more."""
        self._threads.close()

    async def write(
        self, file_id: UUID, chunks: AsyncIterable[bytes], *, max_bytes: int
    ) -> Written:
        part = _Part(self._root, file_id, self._min_free_bytes)
        return await write_part(self._threads, part, chunks, max_bytes=max_bytes)

    async def read(
        self, file_id: UUID, *, offset_bytes: int = 0, size_bytes: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        fd = await self._threads.run(self._open, file_id)
        try:
            while size_bytes is None or size_bytes > 0:
                wanted = CHUNK_BYTES if size_bytes is None else min(CHUNK_BYTES, size_bytes)
                chunk = await self._threads.run(os.pread, fd, wanted, offset_bytes)
                if not chunk:
                    return
                offset_bytes += len(chunk)
                size_bytes = None if size_bytes is None else size_bytes - len(chunk)
                yield chunk
        finally:
            # No thread reads it any more: `run` comes back when its call has.
            os.close(fd)

    async def remove(self, file_ids: Collection[UUID]) -> None:
        await self._threads.run(self._remove, file_ids)

    async def sweep(self, *, older_than_s: float, is_known: IsKnown) -> int:
        num_removed = 0
        written_before_s = time.time() - older_than_s
        for name in await self._threads.run(self._shards):
            parts, files = await self._threads.run(_old_files, self._root / name, written_before_s)
            await self._threads.run(_unlink, parts)
            num_removed += len(parts)
            for first in range(0, len(files), _ASK_FILES):
                asked = files[first : first + _ASK_FILES]
                unknown = set(asked) - set(await is_known(asked))
                await self.remove(unknown)
                num_removed += len(unknown)
        return num_removed

    def _open(self, file_id: UUID) -> int:
        try:
            return os.open(
                place_of(self._root, file_id), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
            )
        except FileNotFoundError:
            raise StoredFileMissing(detail=f"the storage has no file {file_id.hex}") from None

    def _remove(self, file_ids: Collection[UUID]) -> None:
        _unlink([place_of(self._root, file_id) for file_id in file_ids])

    def _shards(self) -> Sequence[str]:
        with suppress(FileNotFoundError):
            return sorted(os.listdir(self._root))
        return ()


class StorageThreads:
    """Run what blocks; whoever leaves early still waits for the call that was begun."""

    def __init__(self, *, outages: tuple[type[Exception], ...] = (OSError,)) -> None:
        self._outages = outages
        self._executor = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="file-storage")

    def close(self) -> None:
        """Begin nothing more."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def run(self, call: Callable[..., R], *args: object) -> R:
        """Return what `call` does. Raises: `StorageUnavailable` for outages; what `call` does."""
        work = asyncio.get_running_loop().run_in_executor(self._executor, call, *args)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            # A thread cannot be stopped, and what it writes to must not be closed before it is.
            while not work.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([work])
            if not work.cancelled():
                work.exception()
            raise
        except GatewayError:
            raise
        except self._outages as exc:
            raise StorageUnavailable(detail=f"the storage of files: {exc}") from exc


class Part(Protocol):
    """Write one file; all of it blocks."""

    def open(self) -> None: ...

    def write(self, pieces: Sequence[bytes]) -> None: ...

    def keep(self) -> Written:
        """Have the file be there, whole and to stay."""
        ...

    def discard(self) -> None:
        """Leave nothing, be it that the file is there already."""
        ...


async def write_part(
    threads: StorageThreads, part: Part, chunks: AsyncIterable[bytes], *, max_bytes: int
) -> Written:
    """Write what comes; nothing stays if that fails. Raises: as `FileStorage.write`."""
    try:
        await threads.run(part.open)
        async with aclosing(_gathered(chunks, max_bytes)) as gathering:
            async for pieces in gathering:
                await threads.run(part.write, pieces)
        return await threads.run(part.keep)
    except BaseException:
        await threads.run(part.discard)
        raise


async def _gathered(
    chunks: AsyncIterable[bytes], max_bytes: int
) -> AsyncGenerator[list[bytes], None]:
    """Yield chunks, many small ones at once. Raises: `FileTooLarge` before the one too many."""
    pieces: list[bytes] = []
    gathered_bytes = size_bytes = 0
    async for chunk in chunks:
        size_bytes += len(chunk)
        if size_bytes > max_bytes:
            raise FileTooLarge(f"The file is larger than {max_bytes} bytes.", param="file")
        pieces.append(chunk)
        gathered_bytes += len(chunk)
        if gathered_bytes >= CHUNK_BYTES:
            yield pieces
            pieces, gathered_bytes = [], 0
    if pieces:
        yield pieces


class _Part:
    """A file that is being written; its methods block."""

    def __init__(self, root: Path, file_id: UUID, min_free_bytes: int) -> None:
        self._root = root
        self._place = place_of(root, file_id)
        # Another writer of the same file, taken for dead, has a name of its own.
        self._part = self._place.with_name(f"{file_id.hex}.{uuid4().hex}{_PART}")
        self._min_free_bytes = min_free_bytes
        self._fd: int | None = None
        self._is_placed = False
        self._size_bytes = self._synced_bytes = 0
        self._hash = hashlib.sha256()

    def open(self) -> None:
        for directory in (self._root, self._place.parent):
            _make(directory)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(self._part, flags, 0o600)

    def write(self, pieces: Sequence[bytes]) -> None:
        assert self._fd is not None, "it is open"
        free = os.fstatvfs(self._fd)
        if free.f_bavail * free.f_frsize < self._min_free_bytes:
            raise OSError(errno.ENOSPC, "what is left of the disk is not for files")
        left = memoryview(b"".join(pieces))
        self._hash.update(left)
        self._size_bytes += len(left)
        while left:
            left = left[os.write(self._fd, left) :]
        if self._size_bytes - self._synced_bytes >= _SYNC_BYTES:
            os.fdatasync(self._fd)
            self._synced_bytes = self._size_bytes

    def keep(self) -> Written:
        """Put the file in its place, to stay there whatever happens."""
        assert self._fd is not None, "it is open"
        os.fsync(self._fd)
        os.rename(self._part, self._place)
        self._is_placed = True
        _sync(self._place.parent)
        self.close()
        return Written(self._size_bytes, self._hash.digest())

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def discard(self) -> None:
        """Leave nothing."""
        self.close()
        # Who was cancelled may have come to its end all the same.
        _unlink([self._place] if self._is_placed else [self._part])


def place_of(root: Path, file_id: UUID) -> Path:
    """Return where a file lies below the directory of all."""
    return root / file_id.hex[-2:] / file_id.hex


def _make(directory: Path) -> None:
    """Make a directory unless it is there, to stay."""
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        return
    _sync(directory.parent)


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _unlink(paths: Collection[Path]) -> None:
    for path in paths:
        with suppress(FileNotFoundError):
            os.unlink(path)


def _old_files(shard: Path, before_s: float) -> tuple[list[Path], list[UUID]]:
    """Return what was not written to since: what was never whole, and files."""
    parts, files = [], []
    for entry in _entries(shard):
        with suppress(FileNotFoundError, ValueError):
            if entry.stat(follow_symlinks=False).st_mtime > before_s:
                continue
            if entry.name.endswith(_PART):
                parts.append(Path(entry.path))
            elif entry.name[-2:] == shard.name:
                files.append(UUID(hex=entry.name))
    return parts, files


def _entries(shard: Path) -> Iterator[os.DirEntry[str]]:
    with suppress(NotADirectoryError, FileNotFoundError), os.scandir(shard) as entries:
        yield from entries
