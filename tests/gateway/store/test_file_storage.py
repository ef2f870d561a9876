"""Files in a directory and in an object store: whole or not there, and nothing left behind."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import stat
import sys
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import aclosing
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from gateway.errors import FileTooLarge, StartupFailed, StorageUnavailable, StoredFileMissing
from gateway.ports import FileStorage
from gateway.store.file_storage import CHUNK_BYTES, DirectoryStorage
from gateway.store.object_storage import ObjectStorage
from gateway.store.storage_place import open_file_storage

pytestmark = pytest.mark.anyio

CONTENT = os.urandom(1000) * 700  # several chunks, and a rest
MAX_BYTES = 1 << 20


@pytest.fixture(params=["directory", "objects"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FileStorage]:
    """Open each storage on the same directory."""
    kept: DirectoryStorage | ObjectStorage
    if request.param == "directory":
        kept = DirectoryStorage(tmp_path / "files")
    else:
        kept = ObjectStorage(LocalFileSystem(auto_mkdir=True), str(tmp_path / "files"))
    yield kept
    kept.close()


async def coming(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def breaking_off(chunk: bytes) -> AsyncIterator[bytes]:
    yield chunk
    raise ConnectionResetError


async def read_all(storage: FileStorage, file_id: UUID, **which: int) -> list[bytes]:
    async with aclosing(storage.read(file_id, **which)) as chunks:
        return [chunk async for chunk in chunks]


def files_below(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if not path.is_dir()]


async def none_known(file_ids: Collection[UUID]) -> Collection[UUID]:
    return ()


async def test_a_file_is_read_as_it_was_written(storage: FileStorage) -> None:
    """Its size and hash are told, it comes back in bounded chunks, whole or in part."""
    file_id = uuid4()
    pieces = [CONTENT[at : at + 50_000] for at in range(0, len(CONTENT), 50_000)]
    written = await storage.write(file_id, coming(*pieces), max_bytes=MAX_BYTES)
    assert written.size_bytes == len(CONTENT)
    assert written.sha256 == hashlib.sha256(CONTENT).digest()
    chunks = await read_all(storage, file_id)
    assert b"".join(chunks) == CONTENT
    assert max(map(len, chunks)) <= 1 << 20
    for offset, size in ((0, 10), (300_000, 300_000), (len(CONTENT) - 5, 100), (len(CONTENT), 9)):
        part = await read_all(storage, file_id, offset_bytes=offset, size_bytes=size)
        assert b"".join(part) == CONTENT[offset : offset + size]


async def test_what_is_removed_is_gone(storage: FileStorage) -> None:
    """To remove it again, or what never was, is no error; to read it is one that says so."""
    kept, removed = uuid4(), uuid4()
    for file_id in (kept, removed):
        await storage.write(file_id, coming(b"text"), max_bytes=MAX_BYTES)
    for _ in range(2):
        await storage.remove([removed, uuid4()])
    with pytest.raises(StoredFileMissing):
        await read_all(storage, removed)
    assert await read_all(storage, kept) == [b"text"]


async def test_what_fails_leaves_nothing(storage: FileStorage, tmp_path: Path) -> None:
    """A file that is too long, or whose sender breaks off, is not there, not in part either."""
    with pytest.raises(FileTooLarge):
        await storage.write(uuid4(), coming(CONTENT, CONTENT), max_bytes=MAX_BYTES)
    with pytest.raises(ConnectionResetError):
        await storage.write(uuid4(), breaking_off(CONTENT), max_bytes=MAX_BYTES)
    assert files_below(tmp_path) == []


async def test_a_cancelled_write_leaves_nothing(storage: FileStorage, tmp_path: Path) -> None:
    """It may be cancelled between two chunks, or at any step of it."""
    for turns in range(0, 60, 3):

        async def slowly() -> AsyncIterator[bytes]:
            for at in range(0, len(CONTENT), 100_000):
                yield CONTENT[at : at + 100_000]
                await asyncio.sleep(0)

        file_id = uuid4()
        writing = asyncio.create_task(storage.write(file_id, slowly(), max_bytes=MAX_BYTES))
        for _ in range(turns):
            await asyncio.sleep(0.0003)
        if not writing.cancel():
            assert (await writing).size_bytes == len(CONTENT)
            await storage.remove([file_id])
        else:
            with pytest.raises(asyncio.CancelledError):
                await writing
        assert files_below(tmp_path) == []


async def test_a_sweep_removes_what_nobody_knows(storage: FileStorage) -> None:
    """What was written lately may be about to be known and stays, as does what is known."""
    known, unknown = uuid4(), uuid4()
    for file_id in (known, unknown):
        await storage.write(file_id, coming(b"text"), max_bytes=MAX_BYTES)

    async def is_known(file_ids: Collection[UUID]) -> Collection[UUID]:
        return set(file_ids) & {known}

    assert await storage.sweep(older_than_s=60, is_known=is_known) == 0
    assert await storage.sweep(older_than_s=-60, is_known=is_known) == 1
    assert await read_all(storage, known) == [b"text"]
    with pytest.raises(StoredFileMissing):
        await read_all(storage, unknown)


async def test_a_sweep_of_nothing_is_no_error(storage: FileStorage) -> None:
    """Before the first file there is no directory."""
    assert await storage.sweep(older_than_s=-60, is_known=none_known) == 0


async def test_what_a_killed_process_was_writing_is_swept(tmp_path: Path) -> None:
    """It is no file under any id, and goes though its row is there still."""
    storage = DirectoryStorage(tmp_path)
    file_id = uuid4()
    arrived = asyncio.Event()

    async def never_ending() -> AsyncIterator[bytes]:
        yield bytes(CHUNK_BYTES)
        arrived.set()
        await asyncio.Event().wait()

    writing = asyncio.create_task(storage.write(file_id, never_ending(), max_bytes=MAX_BYTES))
    await arrived.wait()
    [part] = files_below(tmp_path)

    async def is_known(file_ids: Collection[UUID]) -> Collection[UUID]:
        return file_ids

    assert await storage.sweep(older_than_s=60, is_known=is_known) == 0
    with pytest.raises(StoredFileMissing):
        await read_all(storage, file_id)
    left = part.with_name(f"{file_id.hex}.{uuid4().hex}.part")
    left.write_bytes(part.read_bytes())
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    assert files_below(tmp_path) == [left]
    assert await storage.sweep(older_than_s=-60, is_known=is_known) == 1
    assert files_below(tmp_path) == []
    storage.close()


async def test_nobody_else_can_read_a_file(tmp_path: Path) -> None:
    """Directories and files are this user's alone, and a link is not followed."""
    storage = DirectoryStorage(tmp_path / "files")
    file_id = uuid4()
    await storage.write(file_id, coming(b"text"), max_bytes=MAX_BYTES)
    [path] = files_below(tmp_path)
    assert path == tmp_path / "files" / file_id.hex[-2:] / file_id.hex
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for directory in (path.parent, path.parent.parent):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    secret = tmp_path / "secret"
    secret.write_text("secret")
    path.unlink()
    path.symlink_to(secret)
    with pytest.raises(StorageUnavailable):
        await read_all(storage, file_id)
    storage.close()


async def test_a_full_disk_is_an_outage_and_not_the_journals(tmp_path: Path) -> None:
    """Files are refused while there is room for the rest; nothing stays of what was refused."""
    storage = DirectoryStorage(tmp_path, min_free_bytes=1 << 62)
    with pytest.raises(StorageUnavailable) as refused:
        await storage.write(uuid4(), coming(b"text"), max_bytes=MAX_BYTES)
    assert isinstance(refused.value.__cause__, OSError)
    assert refused.value.__cause__.errno == errno.ENOSPC
    assert files_below(tmp_path) == []
    storage.close()


async def test_files_are_kept_where_the_setting_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unset it is the data directory; what is no place, or needs what is not there, says so."""
    places: list[tuple[str | None, Path]] = [
        (None, tmp_path / "files"),
        (str(tmp_path / "elsewhere"), tmp_path / "elsewhere"),
    ]
    for place, directory in places:
        storage = open_file_storage(place, tmp_path)
        await storage.write(uuid4(), coming(b"text"), max_bytes=MAX_BYTES)
        assert len(files_below(directory)) == 1
        storage.close()
    for wrong in ("s3://", "ftp://there/files"):
        with pytest.raises(StartupFailed, match="SLUICE_FILE_STORAGE"):
            open_file_storage(wrong, tmp_path)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(StartupFailed, match="pip install s3fs"):
        open_file_storage("s3://bucket/prefix", tmp_path)


async def test_an_object_store_that_is_away_is_an_outage() -> None:
    """Whatever its client raises, nobody above the storage has to know it."""

    class Away(MemoryFileSystem):
        def _open(self, *args: object, **options: object) -> object:
            raise RuntimeError("no such endpoint")

        def info(self, *args: object, **options: object) -> object:
            raise RuntimeError("no such endpoint")

    storage = ObjectStorage(Away(), "bucket/prefix")
    with pytest.raises(StorageUnavailable):
        await storage.write(uuid4(), coming(b"text"), max_bytes=MAX_BYTES)
    with pytest.raises(StorageUnavailable):
        await read_all(storage, uuid4())
    storage.close()


async def test_an_object_tells_when_it_was_written(tmp_path: Path) -> None:
    """Object stores have words of their own for that: a moment with a zone is understood."""
    objects = MemoryFileSystem()
    place = f"/{uuid4().hex}"
    storage = ObjectStorage(objects, place)
    objects.pipe_file(f"{place}/{uuid4().hex}", b"text")
    objects.pipe_file(f"{place}/notes.txt", b"not ours")
    assert await storage.sweep(older_than_s=60, is_known=none_known) == 0
    assert await storage.sweep(older_than_s=-60, is_known=none_known) == 1
    assert [Path(name).name for name in objects.find(place)] == ["notes.txt"]
    storage.close()
