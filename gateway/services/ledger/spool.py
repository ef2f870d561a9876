"""The rows of the ledger between the end of a request and their insertion, safe from a kill.

A row is appended to a file in `<data_dir>/spool/` before anything else is done about it, in one
write: from then on it is in the hands of the operating system, and a process that is killed loses
nothing. A power cut can lose the last second, as the files are synced once a second by a thread.

Several processes may share the directory. Each writes files of its own, under a lock that ends
with it, and takes over those of the dead: at its start, and whenever it tidies. What was inserted
but not yet noted here when a process died is inserted again, which the ledger takes for nothing.

A row that the disk does not take (it is full) is held in memory, where a kill would lose it; the
spool says that it is full until such rows are through. All but the syncing runs on one thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from gateway.background import Background
from gateway.domain.usage import UsageRow
from gateway.ports import Clock
from gateway.services.ledger.spool_segment import NAMELESS_SUFFIX, SUFFIX, Segment

logger = logging.getLogger(__name__)

SYNC_INTERVAL_S: Final = 1.0
REFUSED_NAME: Final = "refused.jsonl"
# A file that is through goes when it has reached the first size or this age; one that never is,
# because rows keep coming, is followed by another at the second size.
_DROP_BYTES: Final = 1 << 20
_SEGMENT_BYTES: Final = 16 << 20
_DROP_AGE_S: Final = 60.0
# Answers of keyed requests may be of megabytes: read a few at a time.
_BATCH_BYTES: Final = 4 << 20


class Spool:
    """Keep rows until they are confirmed. Reading a lot of rows blocks: use batches."""

    def __init__(
        self,
        directory: Path,
        *,
        max_bytes: int = 512 << 20,
        segment_bytes: int = _SEGMENT_BYTES,
        clock: Clock = time,
        sync_interval_s: float = SYNC_INTERVAL_S,
    ) -> None:
        """Open the directory and take over what dead processes left. Raises: `OSError`."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory = directory
        self._max_bytes = max_bytes
        self._segment_bytes = segment_bytes
        self._sync_interval_s = sync_interval_s
        self._clock = clock
        self._own: deque[Segment] = deque()
        self._tail: Segment | None = None
        self._tail_since_s = 0.0
        self._taken_over: deque[Segment] = deque()
        self._in_memory: deque[UsageRow] = deque()
        self._given: deque[tuple[Segment | None, int]] = deque()
        self._num_through = 0
        self._num_appended = 0
        # Set while there are rows to insert.
        self.arrived = asyncio.Event()
        self.tidy()

    def append(self, row: UsageRow) -> None:
        """Take a row, for good. It never fails: a finished request must be billed."""
        assert row.at.tzinfo is not None, "a ledger knows no local times"
        try:
            if self._tail is None or self._tail.size_bytes >= self._segment_bytes:
                self._begin_segment()
            assert self._tail is not None
            self._tail.append(row)
        except OSError as exc:
            # Half a line may stand at the end of that file: nothing may follow it.
            self._tail = None
            if not self._in_memory:
                logger.error("the spool cannot be written, rows are held in memory: %s", exc)
            self._in_memory.append(row)
        self._num_appended += 1
        self.arrived.set()

    def pending(self, limit: int) -> Sequence[UsageRow]:
        """Return rows that are not confirmed: this process's own first, each file's in order."""
        rows: list[UsageRow] = []
        max_bytes = _BATCH_BYTES
        self._given.clear()
        for segment in (*self._own, *self._taken_over):
            if len(rows) == limit or max_bytes <= 0:
                break
            found = segment.read(limit - len(rows), max_bytes)
            if not found and not segment.is_through:
                self._num_through += segment.pass_damage()
                found = segment.read(limit - len(rows), max_bytes)
            for row, end in found:
                rows.append(row)
                self._given.append((segment, end))
            if found:
                max_bytes -= found[-1][1] - segment.done_bytes
        for row in list(self._in_memory)[: limit - len(rows)]:
            rows.append(row)
            self._given.append((None, 0))
        self._drop_through()
        return rows

    def confirm(self, num_rows: int) -> None:
        """Note that the first so many rows that `pending` returned last are dealt with."""
        for _ in range(num_rows):
            segment, end = self._given.popleft()
            if segment is None:
                self._in_memory.popleft()
            else:
                segment.done_bytes = end
        self._num_through += num_rows
        self._drop_through()

    def unledgered(self) -> Iterator[UsageRow]:
        """Go through every row that is not confirmed. Exhaust it before anything else is called.

        It reads the files as it goes, so many rows cost time and no memory.
        """
        for segment in (*self._own, *self._taken_over):
            yield from segment.rows()
        yield from tuple(self._in_memory)

    def put_aside(self, row: UsageRow) -> None:
        """Write a row that the ledger refuses where an operator finds it. Raises: `OSError`."""
        path = self._directory / REFUSED_NAME
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "ab") as file:
            file.write(msgspec.json.encode(row.bill()) + b"\n")

    def tidy(self) -> None:
        """Take over the files of processes that died, and drop an old file that is through."""
        known = {segment.path for segment in (*self._own, *self._taken_over)}
        for path in sorted(set(self._directory.glob(f"*{SUFFIX}")) - known):
            segment = Segment.take_over(path)
            if segment is not None:
                logger.info("took over %d rows of a process that ended", segment.num_rows)
                self._taken_over.append(segment)
                self._num_appended += segment.num_rows
        for path in self._directory.glob(f"*{NAMELESS_SUFFIX}"):
            # Its process was killed before the first row.
            with suppress(FileNotFoundError):
                if self._clock.time() - path.stat().st_mtime > _DROP_AGE_S:
                    path.unlink()
        if self._clock.monotonic() - self._tail_since_s > _DROP_AGE_S:
            self._drop_tail_if_through()
        self._drop_through()

    @property
    def num_appended(self) -> int:
        """Return how many rows came, those taken over included."""
        return self._num_appended

    @property
    def num_through(self) -> int:
        """Return how many of them are dealt with."""
        return self._num_through

    @property
    def depth(self) -> int:
        """Return how many rows are not in the ledger yet."""
        return self._num_appended - self._num_through

    @property
    def size_bytes(self) -> int:
        """Return what the files take on the disk."""
        return sum(segment.size_bytes for segment in (*self._own, *self._taken_over))

    @property
    def fill(self) -> float:
        """Return how much of its bound is used, 0 to 1; 1 where the disk takes no more."""
        return 1.0 if self._in_memory else min(1.0, self.size_bytes / self._max_bytes)

    @property
    def is_full(self) -> bool:
        """Tell whether no more work should be begun. Rows are taken all the same."""
        return self.fill >= 1.0

    @asynccontextmanager
    async def syncing(self) -> AsyncIterator[None]:
        """Sync once a second while the block runs."""
        try:
            async with Background(
                "syncing the spool",
                self.sync,
                interval_s=self._sync_interval_s,
                outages=(OSError,),
                level=logging.ERROR,
            ):
                yield
        finally:
            await self.sync()

    async def sync(self) -> None:
        """Have the disk take what was written, on a thread. Raises: `OSError`."""
        dirty = [segment for segment in self._own if segment.is_dirty]
        if not dirty:
            return
        for segment in dirty:
            segment.is_dirty = False
        # Copies, because a file may be dropped while the thread is at it.
        descriptors = [os.dup(segment.descriptor) for segment in dirty]
        descriptors.append(os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY))
        await asyncio.shield(asyncio.to_thread(_sync, descriptors))

    def close(self) -> None:
        """Leave the files; those with rows in them wait for the next process."""
        if self._in_memory:
            logger.error("%d rows that the disk did not take are lost", len(self._in_memory))
        for segment in (*self._own, *self._taken_over):
            if segment.is_through:
                segment.retire()
            else:
                segment.close()
        self._own.clear()
        self._taken_over.clear()
        self._tail = None

    def _begin_segment(self) -> None:
        self._tail = Segment.create(self._directory)
        self._tail_since_s = self._clock.monotonic()
        self._own.append(self._tail)

    def _drop_through(self) -> None:
        if self._tail is not None and self._tail.size_bytes >= _DROP_BYTES:
            self._drop_tail_if_through()
        for segments in (self._own, self._taken_over):
            for segment in [one for one in segments if one.is_through and one is not self._tail]:
                segments.remove(segment)
                segment.retire()
        if self.depth:
            self.arrived.set()
        else:
            self.arrived.clear()

    def _drop_tail_if_through(self) -> None:
        if self._tail is not None and self._tail.is_through:
            self._tail = None


def _sync(descriptors: Sequence[int]) -> None:
    try:
        for descriptor in descriptors:
            os.fsync(descriptor)
    finally:
        for descriptor in descriptors:
            with suppress(OSError):
                os.close(descriptor)
