"""One file of the spool: a line a row, and the lock that says that its process lives.

A line is `<CRC32 of the JSON, 8 hexadecimal digits> <JSON>\\n`, written in one call. What a kill
can leave is therefore a last line without its end: it is ignored, as nobody was told that it had
been written. A line in the middle whose checksum is wrong was damaged later; it is passed over,
the lines after it are read, and the file stays for an operator under the name `*.corrupt`. The
line of a keyed request, or of an item of a batch, holds its answer too, so that neither is there
without the other; a release that knows of no answers reads it as a row.

The lock (flock) lives as long as the process that wrote the file. A new file gets its name only
once it is locked, so whoever can lock a file by that name knows its process dead.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from uuid import uuid4
from zlib import crc32

import msgspec

from gateway.domain.usage import ItemRow, KeyedRow, UsageRow

logger = logging.getLogger(__name__)

SUFFIX: Final = ".spool"
NAMELESS_SUFFIX: Final = ".new"
CORRUPT_SUFFIX: Final = ".corrupt"
_READ_BYTES: Final = 1 << 18

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(UsageRow)
# By what no string can hold, as its quotes would be escaped.
_DECODERS_BY_MARK: Final[dict[bytes, msgspec.json.Decoder[Any]]] = {
    b'"keyed":{': msgspec.json.Decoder(KeyedRow),
    b'"item":{': msgspec.json.Decoder(ItemRow),
}


class Segment:
    """Hold one file: rows up to `done_bytes` are dealt with, those up to `size_bytes` are there."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor
        self.size_bytes = 0
        self.done_bytes = 0
        self.num_rows = 0
        self.is_dirty = False
        self._is_damaged = False

    @classmethod
    def create(cls, directory: Path) -> Segment:
        """Make a file of this process. Raises: `OSError`."""
        path = directory / f"{uuid4().hex}{SUFFIX}"
        nameless = path.with_suffix(NAMELESS_SUFFIX)
        descriptor = os.open(nameless, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            nameless.rename(path)
        except OSError:
            os.close(descriptor)
            raise
        return cls(path, descriptor)

    @classmethod
    def take_over(cls, path: Path) -> Segment | None:
        """Open the file of a dead process; None where its process lives, or it is gone."""
        try:
            descriptor = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another process may have dealt with it between the two calls above.
            is_there = path.stat().st_ino == os.fstat(descriptor).st_ino
        except (BlockingIOError, FileNotFoundError):
            is_there = False
        if not is_there:
            os.close(descriptor)
            return None
        segment = cls(path, descriptor)
        segment._measure()
        return segment

    def append(self, row: UsageRow) -> None:
        """Write a row. After an `OSError` nothing more may be written here."""
        body = _encoder.encode(row)
        line = b"%08x %b\n" % (crc32(body), body)
        written = os.write(self.descriptor, line)
        if written != len(line):
            raise OSError(f"wrote {written} of {len(line)} bytes")
        self.size_bytes += written
        self.num_rows += 1
        self.is_dirty = True

    def read(self, limit: int, max_bytes: int) -> list[tuple[UsageRow, int]]:
        """Return the oldest rows that are left, each with the `done_bytes` that confirms it.

        It stops before a damaged line (`pass_damage` gets over one that comes first), and after
        the line that reaches `max_bytes`.
        """
        rows: list[tuple[UsageRow, int]] = []
        if limit <= 0 or max_bytes <= 0:
            return rows
        for line, end in self._lines():
            row = _decode(line)
            if row is None:
                break
            rows.append((row, end))
            if len(rows) == limit or end - self.done_bytes >= max_bytes:
                break
        return rows

    def pass_damage(self) -> int:
        """Go past the damaged lines that come first and return how many they were."""
        passed = 0
        for line, end in self._lines():
            if _decode(line) is not None:
                break
            logger.error(
                "%s is damaged at byte %d: a row of %d bytes cannot be billed, the file is kept",
                self.path,
                self.done_bytes,
                len(line),
            )
            self._is_damaged = True
            self.done_bytes = end
            passed += 1
        return passed

    def rows(self) -> Iterator[UsageRow]:
        """Go through all rows that are left."""
        for line, _ in self._lines():
            row = _decode(line)
            if row is not None:
                yield row

    @property
    def is_through(self) -> bool:
        """Tell whether nothing is left in it."""
        return self.done_bytes == self.size_bytes

    def close(self) -> None:
        """Leave the file, which another process may take over from now on."""
        os.close(self.descriptor)

    def retire(self) -> None:
        """Remove the file; one that is damaged is put aside instead."""
        if self._is_damaged:
            self.path.rename(self.path.with_suffix(CORRUPT_SUFFIX))
        else:
            self.path.unlink(missing_ok=True)
        os.close(self.descriptor)

    def _measure(self) -> None:
        """Count the lines of a file that was found, and leave its torn end out."""
        position = 0
        while chunk := os.pread(self.descriptor, _READ_BYTES, position):
            self.num_rows += chunk.count(b"\n")
            if b"\n" in chunk:
                self.size_bytes = position + chunk.rindex(b"\n") + 1
            position += len(chunk)
        if position != self.size_bytes:
            torn = position - self.size_bytes
            logger.warning("%s ends in %d bytes of a row half written", self.path, torn)

    def _lines(self) -> Iterator[tuple[bytes, int]]:
        """Go through what is left, line by line, each with the position of its end."""
        position = start = self.done_bytes
        size_bytes = self.size_bytes
        # Pieces of a line that has not ended: an answer may make it one of megabytes.
        begun: list[bytes] = []
        while position < size_bytes:
            wanted = min(_READ_BYTES, size_bytes - position)
            chunk = os.pread(self.descriptor, wanted, position)
            if not chunk:
                return
            position += len(chunk)
            first, *more = chunk.split(b"\n")
            begun.append(first)
            if not more:
                continue
            *lines, rest = [b"".join(begun), *more]
            begun = [rest]
            for line in lines:
                start += len(line) + 1
                yield line, start


def _decode(line: bytes) -> UsageRow | None:
    """Return the row of a line; None where it is damaged, or not of this release."""
    checksum, body = line[:8], line[9:]
    if checksum != b"%08x" % crc32(body):
        return None
    try:
        return _decoder_of(body).decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _decoder_of(body: bytes) -> msgspec.json.Decoder[UsageRow]:
    for mark, decoder in _DECODERS_BY_MARK.items():
        if mark in body:
            return decoder
    return _decoder
