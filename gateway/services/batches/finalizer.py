"""Writing a batch's results into files, once all of its lines are over.

Two files at most: what was answered, and what failed, was cancelled or expired; each by line. They
are seen from the transaction on that ends the batch, which one of several does: a slow one, taken
for dead, has written files of its own, perhaps not to their ends, and removes them. What somebody
leaves who dies of it is swept as the bytes of any file that nobody knows.

A tenant whose storage is full gets its results all the same.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import uuid5

import msgspec

from gateway.domain.batch import Batch
from gateway.domain.files import BATCH_OUTPUT, FileDraft, WholeFile, new_file_id
from gateway.errors import GatewayError, StorageUnavailable
from gateway.ports import BatchSteps, Clock, FileStorage
from gateway.services.batches.hold import Hold
from gateway.services.batches.rests import Rests

OUTPUT, ERROR = "output", "error"
# No bound of a tenant's: what was computed is not thrown away.
_MAX_BYTES: Final = 1 << 42
_REST_RATIO: Final = 3.0
# `str.splitlines` and what is built on it, as `iter_lines` of httpx, cut there.
_LINE_ENDS: Final = {end.encode(): f"\\u{ord(end):04x}".encode() for end in "\x85\u2028\u2029"}
_DROPPED: Final = {
    True: ("batch_expired", "The batch's window passed before this request was run."),
    False: ("batch_cancelled", "The batch was cancelled before this request was run."),
}


class DroppedError(msgspec.Struct):
    code: str
    message: str


class DroppedLine(msgspec.Struct):
    """Spell a request that was never run, as OpenAI does."""

    id: str
    custom_id: str
    error: DroppedError
    response: None = None


class _Lost(Exception):
    """Stop: another has finished the batch."""


class Finalizer:
    """Finish batches that were handed out."""

    def __init__(self, steps: BatchSteps, storage: FileStorage, clock: Clock = time) -> None:
        self._steps = steps
        self._storage = storage
        self._clock = clock

    async def finalize(self, batch: Batch) -> None:
        """Write a batch's files and end it.

        Raises: `StoreUnavailable`, `StorageUnavailable`: it is to be done again.
        """
        hold = Hold(self._steps, batch.id, self._clock)
        output = error = None
        try:
            if batch.num_done:
                output = await self._write(batch, OUTPUT, self._answered(batch, hold))
            if batch.num_failed or batch.num_dropped:
                error = await self._write(batch, ERROR, self._failed(batch, hold))
        except _Lost:
            await self._remove(output)
            return
        except GatewayError:
            # It is written anew with each try: copies would fill the disk before they are swept.
            with suppress(StorageUnavailable):
                await self._remove(output)
            raise
        # Where that fails nobody knows whether they are the batch's files now.
        if not await self._steps.finish(batch.id, output=output, error=error):
            await self._remove(output, error)

    async def _remove(self, *files: WholeFile | None) -> None:
        await self._storage.remove([file.draft.id for file in files if file is not None])

    def _rests(self) -> Rests:
        return Rests(_REST_RATIO, self._clock.monotonic)

    async def _write(self, batch: Batch, kind: str, lines: AsyncIterator[bytes]) -> WholeFile:
        file_id = new_file_id(datetime.fromtimestamp(self._clock.time(), UTC))
        name = f"batch_{batch.id.hex}_{kind}.jsonl"
        draft = FileDraft(file_id, batch.tenant_id, name, BATCH_OUTPUT, self._expires_at(batch))
        return WholeFile(draft, await self._storage.write(file_id, lines, max_bytes=_MAX_BYTES))

    def _expires_at(self, batch: Batch) -> datetime | None:
        after_s = batch.draft.output_expires_after_s
        if after_s is None:
            return None
        return datetime.fromtimestamp(self._clock.time(), UTC) + timedelta(seconds=after_s)

    async def _answered(self, batch: Batch, hold: Hold) -> AsyncIterator[bytes]:
        rests = self._rests()
        async with aclosing(self._steps.results(batch.id, is_error=False)) as parts:
            async for part in parts:
                yield _joined([result.body for result in part])
                await rests.before_more()
                if not await hold.still():
                    raise _Lost

    async def _failed(self, batch: Batch, hold: Hold) -> AsyncIterator[bytes]:
        """Yield what failed and what was dropped, in the order of their lines."""
        rests = self._rests()
        waiting: list[tuple[int, bytes]] = []
        async with aclosing(self._steps.dropped(batch.id)) as dropped:
            async with aclosing(self._steps.results(batch.id, is_error=True)) as failed:
                async for part in failed:
                    lines = [(result.run.line, result.body) for result in part]
                    while not waiting or waiting[-1][0] < lines[-1][0]:
                        more = await anext(dropped, None)
                        if more is None:
                            break
                        waiting += [(one[0], _dropped(batch, *one)) for one in more]
                    before = [one for one in waiting if one[0] < lines[-1][0]]
                    waiting = waiting[len(before) :]
                    yield _joined([body for _, body in sorted(before + lines)])
                    await rests.before_more()
                    if not await hold.still():
                        raise _Lost
            if waiting:
                yield _joined([body for _, body in waiting])
            async for more in dropped:
                yield _joined([_dropped(batch, *one) for one in more])
                await rests.before_more()
                if not await hold.still():
                    raise _Lost


def _dropped(batch: Batch, line: int, custom_id: str, is_expired: bool) -> bytes:
    code, message = _DROPPED[is_expired]
    request_id = f"batch_req_{uuid5(batch.id, str(line)).hex}"
    return msgspec.json.encode(DroppedLine(request_id, custom_id, DroppedError(code, message)))


def _joined(lines: Sequence[bytes]) -> bytes:
    return b"".join(_as_one_line(line) + b"\n" for line in lines)


def _as_one_line(line: bytes) -> bytes:
    """Escape what stands in JSON as it is and yet ends a line for readers of text."""
    if line.isascii():
        return line
    for end, escaped in _LINE_ENDS.items():
        line = line.replace(end, escaped)
    return line
