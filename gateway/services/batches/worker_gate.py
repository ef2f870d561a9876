"""Bounds the requests of items that are read and not yet with the engine, in bytes.

What is over a tenant's part waits for the tenant's own, and others go past it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final
from uuid import UUID

MAX_BYTES: Final = 64 << 20
# What a tenant may have of it.
TENANT_SHARE: Final = 0.25


class ByteGate:
    """Let items in; one that alone is more than a part comes in by itself."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._by_tenant: Counter[UUID] = Counter()
        self._waiting: list[tuple[UUID, int, asyncio.Future[None]]] = []

    async def enter(self, tenant_id: UUID, size_bytes: int) -> Callable[[], None]:
        """Wait for room, and return what gives it back; a second call of that does nothing."""
        if not self._fits(tenant_id, size_bytes):
            place = tenant_id, size_bytes, asyncio.get_running_loop().create_future()
            self._waiting.append(place)
            try:
                await place[2]
            except asyncio.CancelledError:
                if place in self._waiting:
                    self._waiting.remove(place)
                else:
                    self._leave(tenant_id, size_bytes)
                raise
        else:
            self._take(tenant_id, size_bytes)
        is_in = True

        def leave() -> None:
            nonlocal is_in
            if is_in:
                is_in = False
                self._leave(tenant_id, size_bytes)

        return leave

    def _fits(self, tenant_id: UUID, size_bytes: int) -> bool:
        of_tenant = self._by_tenant[tenant_id]
        if of_tenant and of_tenant + size_bytes > self._max_bytes * TENANT_SHARE:
            return False
        return not self._num_bytes or self._num_bytes + size_bytes <= self._max_bytes

    def _take(self, tenant_id: UUID, size_bytes: int) -> None:
        self._num_bytes += size_bytes
        self._by_tenant[tenant_id] += size_bytes

    def _leave(self, tenant_id: UUID, size_bytes: int) -> None:
        self._num_bytes -= size_bytes
        self._by_tenant[tenant_id] -= size_bytes
        if not self._by_tenant[tenant_id]:
            del self._by_tenant[tenant_id]
        still = []
        for place in self._waiting:
            if place[2].cancelled():
                continue
            if self._fits(place[0], place[1]):
                self._take(place[0], place[1])
                place[2].set_result(None)
            else:
                still.append(place)
        self._waiting = still
