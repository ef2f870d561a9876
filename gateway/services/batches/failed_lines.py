"""The lines of a batch's input that gave no answer, to be run again as another batch.

Which they are its error file says: what failed, was cancelled or expired is in there by its
`custom_id`, of which no two lines of an input have the same. Both files are read in pieces, and
each piece is looked through as work of the tenant on the threads that all tenants share, with rests
between them, as a batch is validated. What is held is one piece and the ids, some megabytes of
50,000.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from functools import partial
from typing import Final
from uuid import UUID

import msgspec

from gateway.domain.batch import Batch
from gateway.errors import FileNotFound, InvalidRequest
from gateway.services.batches.input_lines import InputLines, RawLine
from gateway.services.fair_pool import FairPool
from gateway.services.files import FileService

_SLICE_BYTES: Final = 32 << 10
_REST_RATIO: Final = 5.0


class _Named(msgspec.Struct, gc=False):
    custom_id: str


_named: Final = msgspec.json.Decoder(_Named)
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class FailedLines:
    """Find the lines that gave no answer; `pool` has the threads that read."""

    def __init__(self, files: FileService, pool: FairPool) -> None:
        self._files = files
        self._pool = pool

    async def of(self, batch: Batch) -> AsyncGenerator[bytes, None]:
        """Yield them as an input of their own, in the order that they had.

        Raises: `InvalidRequest`: there are none, or one of the files is gone; `TenantLimited`,
        `Overloaded`: too many are read already; `StorageUnavailable`.
        """
        if batch.error_file_id is None:
            raise InvalidRequest("No line of this batch failed.")
        wanted: set[str] = set()

        def note(lines: Iterable[RawLine]) -> bytes:
            wanted.update(filter(None, map(_custom_id, lines)))
            return b""

        def pick(lines: Iterable[RawLine]) -> bytes:
            return b"".join(
                line.text + b"\n" for line in lines if line.text and _custom_id(line) in wanted
            )

        async for _ in self._read(batch.tenant_id, batch.error_file_id, note):
            pass
        # Who takes no more, as the tenant's storage is full, gives the place of the reading back.
        async with aclosing(self._read(batch.tenant_id, batch.draft.input_file_id, pick)) as parts:
            async for part in parts:
                yield part

    async def _read(
        self, tenant_id: UUID, file_id: UUID, look: Callable[[Iterable[RawLine]], bytes]
    ) -> AsyncGenerator[bytes, None]:
        """Yield what `look` makes of a file's lines, but nothing that is empty."""
        lines = InputLines()
        run = partial(self._pool.run, tenant_id, rest_ratio=_REST_RATIO)

        def fed(part: bytes) -> bytes:
            return look(lines.feed(part))

        try:
            file = await self._files.get(tenant_id, file_id)
        except FileNotFound:
            raise InvalidRequest(
                "What failed cannot be run again: a file of this batch is gone."
            ) from None
        async with self._files.opened(file, offset_bytes=0, size_bytes=file.size_bytes) as chunks:
            async for chunk in chunks:
                for first in range(0, len(chunk), _SLICE_BYTES):
                    part = chunk[first : first + _SLICE_BYTES]
                    if found := await run(partial(fed, part)):
                        yield found
        if found := await run(lambda: look(lines.end())):
            yield found


def _custom_id(line: RawLine) -> str | None:
    """Read whose line it is; None where it is nobody's."""
    try:
        return None if line.text is None else _named.decode(line.text).custom_id
    except _UNREADABLE:
        return None
