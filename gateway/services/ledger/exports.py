"""Answers that are collected into a file before they are sent.

A client reads as slowly as it likes, and a transaction that waited for it would hold a connection
so long. So an export is read from the store as fast as that gives it, into a file, and sent from
there. Files have no name: a process that is killed leaves none. The first MiB of each stays in
memory.

Bounds: how many exports there are at a time, and what they take, of a tenant and in all, less of a
tenant where many have theirs; from their first byte until the last is sent. All file work is done
on threads.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from uuid import UUID

from gateway.domain.shared_room import SharedRoom
from gateway.errors import GatewayError, InvalidRequest, Overloaded, TenantLimited

MAX_OPEN: Final = 16
MAX_OPEN_OF_TENANT: Final = 2
MAX_BYTES: Final = 1 << 30
MAX_TENANT_BYTES: Final = 128 << 20
_IN_MEMORY_BYTES: Final = 1 << 20
_PIECE_BYTES: Final = 64 << 10
_RETRY_AFTER_S: Final = 10.0


class Exports:
    """Keep the exports of a process; `directory` is made when it is needed, None is the system's.

    `whose` is a tenant, or the organisation for what is of all of them.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        max_open: int = MAX_OPEN,
        max_open_of_tenant: int = MAX_OPEN_OF_TENANT,
        max_bytes: int = MAX_BYTES,
        max_tenant_bytes: int = MAX_TENANT_BYTES,
    ) -> None:
        self._directory = directory
        self._max_tenant_bytes = max_tenant_bytes
        self._open = SharedRoom(max_open, of_tenant=max_open_of_tenant, least=1)
        self._bytes = SharedRoom(max_bytes, of_tenant=max_tenant_bytes)

    @property
    def num_open(self) -> int:
        """Return how many exports are collected or sent now."""
        return self._open.num_taken

    @property
    def size_bytes(self) -> int:
        """Return what they take."""
        return self._bytes.num_taken

    @asynccontextmanager
    async def opened(self, whose: UUID) -> AsyncIterator[Export]:
        """Begin an export, which is gone when the block ends.

        Raises: `TenantLimited`, `Overloaded`: as many as may be are there already.
        """
        if self._open.is_above_its_own(whose, 1):
            raise TenantLimited(
                f"{self._open.taken_by(whose)} exports are under way already. Try again when they "
                "are read.",
                code="too_many_exports",
                retry_after_s=_RETRY_AFTER_S,
            )
        if not self._open.left(whose):
            raise _full()
        self._open.take(whose, 1)
        export = Export(self._directory, lambda more: self._take(whose, export, more))
        try:
            yield export
        finally:
            export.close()
            self._open.give_back(whose, 1)
            self._bytes.give_back(whose, export.size_bytes)

    def _take(self, whose: UUID, export: Export, more: int) -> None:
        """Count bytes that an export is about to hold, or raise."""
        if export.size_bytes + more > self._max_tenant_bytes:
            raise InvalidRequest(
                f"The export is larger than {self._max_tenant_bytes >> 20} MiB: ask for a shorter "
                "time, or group by less.",
                param="group_by",
            )
        if self._bytes.is_above_its_own(whose, more):
            raise TenantLimited(
                "Another export takes the room for those of this tenant. Try again when it is "
                "read.",
                code="too_many_exports",
                retry_after_s=_RETRY_AFTER_S,
            )
        if more > self._bytes.left(whose):
            raise _full()
        self._bytes.take(whose, more)


class Export:
    """Hold one answer: written first, then read."""

    def __init__(self, directory: Path | None, take: Callable[[int], None]) -> None:
        self._directory = directory
        self._take = take
        self._file: tempfile.SpooledTemporaryFile[bytes] | None = None
        self.size_bytes = 0

    async def write(self, encode: Callable[[], bytes]) -> None:
        """Append what `encode` returns; both are done on a thread.

        Raises: what tells that there is no room for it.
        """
        data = await asyncio.to_thread(encode)
        self._take(len(data))
        self.size_bytes += len(data)
        try:
            await asyncio.to_thread(self._append, data)
        except OSError as exc:
            raise _full(f"an export cannot be written: {exc}") from exc

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield all of it, from its beginning."""
        if self._file is None:
            return
        self._file.seek(0)
        while piece := await asyncio.to_thread(self._file.read, _PIECE_BYTES):
            yield piece

    def close(self) -> None:
        """Give the file's room back."""
        if self._file is not None:
            self._file.close()

    def _append(self, data: bytes) -> None:
        if self._file is None:
            if self._directory is not None:
                self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            where = None if self._directory is None else str(self._directory)
            self._file = tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES, dir=where)  # noqa: SIM115  # closed by `close`
        self._file.write(data)


def _full(detail: str | None = None) -> GatewayError:
    return Overloaded(
        "Too many exports are under way. Try again later.",
        code="too_many_exports",
        detail=detail,
        retry_after_s=_RETRY_AFTER_S,
    )
