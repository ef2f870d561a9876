"""Answers that are collected into a file before they are sent.

A client reads as slowly as it likes, and a transaction that waited for it would hold a connection
so long. So an export is read from the store as fast as that gives it, into a file, and sent from
there. Files have no name: a process that is killed leaves none. The first MiB of each stays in
memory.

Bounds: how many exports there are at a time, and what they take, of a tenant and in all; both from
their first byte until the last is sent. All file work is done on threads.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

from gateway.errors import GatewayError, InvalidRequest, Overloaded, TenantLimited

MAX_OPEN: Final = 16
MAX_OPEN_OF_TENANT: Final = 2
MAX_BYTES: Final = 1 << 30
MAX_TENANT_BYTES: Final = 128 << 20
_IN_MEMORY_BYTES: Final = 1 << 20
_PIECE_BYTES: Final = 64 << 10
_RETRY_AFTER_S: Final = 10.0


@dataclass(slots=True)
class _Taken:
    """Say what somebody's exports take."""

    num_open: int = 0
    size_bytes: int = 0


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
        self._max_open = max_open
        self._max_open_of_tenant = max_open_of_tenant
        self._max_bytes = max_bytes
        self._max_tenant_bytes = max_tenant_bytes
        self._taken: dict[UUID, _Taken] = {}

    @property
    def num_open(self) -> int:
        """Return how many exports are collected or sent now."""
        return sum(taken.num_open for taken in self._taken.values())

    @property
    def size_bytes(self) -> int:
        """Return what they take."""
        return sum(taken.size_bytes for taken in self._taken.values())

    @asynccontextmanager
    async def opened(self, whose: UUID) -> AsyncIterator[Export]:
        """Begin an export, which is gone when the block ends.

        Raises: `TenantLimited`, `Overloaded`: as many as may be are there already.
        """
        taken = self._taken.get(whose, _Taken())
        if taken.num_open >= self._max_open_of_tenant:
            raise TenantLimited(
                f"{taken.num_open} exports are under way already. Try again when they are read.",
                code="too_many_exports",
                retry_after_s=_RETRY_AFTER_S,
            )
        if self.num_open >= self._max_open:
            raise _full()
        self._taken[whose] = taken
        taken.num_open += 1
        export = Export(self._directory, lambda more: self._take(taken, export, more))
        try:
            yield export
        finally:
            export.close()
            taken.num_open -= 1
            taken.size_bytes -= export.size_bytes
            if not taken.num_open:
                del self._taken[whose]

    def _take(self, taken: _Taken, export: Export, more: int) -> None:
        """Count bytes that an export is about to hold, or raise."""
        if export.size_bytes + more > self._max_tenant_bytes:
            raise InvalidRequest(
                f"The export is larger than {self._max_tenant_bytes >> 20} MiB: ask for a shorter "
                "time, or group by less.",
                param="group_by",
            )
        if taken.size_bytes + more > self._max_tenant_bytes:
            raise TenantLimited(
                "Another export takes the room for those of this tenant. Try again when it is "
                "read.",
                code="too_many_exports",
                retry_after_s=_RETRY_AFTER_S,
            )
        if self.size_bytes + more > self._max_bytes:
            raise _full()
        taken.size_bytes += more


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
