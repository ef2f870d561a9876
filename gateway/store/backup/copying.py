"""Bytes that are copied into and out of a backup: hashed on the way, synced, for our user alone."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

from gateway.store.backup.manifest import Entry

_CHUNK_BYTES: Final = 1 << 20


def write_chunks(chunks: Iterable[bytes], target: Path) -> Entry:
    """Write a new file of mode 0600, have it on the disk, and return what it holds.

    Its directory is made where it is missing. Raises: `OSError`: one is there, or no room is.
    """
    make_directory(target.parent)
    digest, size_bytes = hashlib.sha256(), 0
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(target, flags, 0o600), "wb") as file:
        for chunk in chunks:
            digest.update(chunk)
            size_bytes += len(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    return Entry(size_bytes, digest.hexdigest())


def copy_file(source: Path, target: Path) -> Entry:
    """Copy what a file holds by now. Raises: `OSError`; `FileNotFoundError`: it is gone."""
    with _opened(source) as file:
        return write_chunks(_chunks(file.fileno()), target)


def measure(path: Path) -> Entry:
    """Return what a file holds. Raises: `OSError`."""
    digest, size_bytes = hashlib.sha256(), 0
    with _opened(path) as file:
        for chunk in _chunks(file.fileno()):
            digest.update(chunk)
            size_bytes += len(chunk)
    return Entry(size_bytes, digest.hexdigest())


def make_directory(directory: Path) -> None:
    """Make a directory of mode 0700, and those above it, unless they are there."""
    if not directory.is_dir():
        make_directory(directory.parent)
        directory.mkdir(mode=0o700, exist_ok=True)


def sync_directory(directory: Path) -> None:
    """Have the names in a directory on the disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _opened(path: Path) -> BinaryIO:
    """Open a file, and wait for nobody: a pipe that is in its place has nobody who writes."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    file = os.fdopen(os.open(path, flags), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is no file", str(path))
    return file


def _chunks(descriptor: int) -> Iterator[bytes]:
    while chunk := os.read(descriptor, _CHUNK_BYTES):
        yield chunk
