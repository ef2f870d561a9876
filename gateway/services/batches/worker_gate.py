"""Bounds the requests of items that are read and not yet with the engine, in bytes.

What is over a tenant's part waits for the tenant's own, and others go past it. Where many have
theirs the part is less (see `gateway.domain.shared_room`); who has nothing there has one item in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final
from uuid import UUID

from gateway.domain.shared_room import SharedRoom

MAX_BYTES: Final = 64 << 20
# What a tenant may have of it.
TENANT_SHARE: Final = 0.25


class ByteGate:
    """Let items in; one that alone is more than a part comes in by itself."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._room = SharedRoom(max_bytes, of_tenant=int(max_bytes * TENANT_SHARE))
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
            self._room.take(tenant_id, size_bytes)
        is_in = True

        def leave() -> None:
            nonlocal is_in
            if is_in:
                is_in = False
                self._leave(tenant_id, size_bytes)

        return leave

    def _fits(self, tenant_id: UUID, size_bytes: int) -> bool:
        num_taken = self._room.num_taken
        if not num_taken or size_bytes <= self._room.left(tenant_id):
            return True
        return not self._room.taken_by(tenant_id) and num_taken + size_bytes <= self._room.in_all

    def _leave(self, tenant_id: UUID, size_bytes: int) -> None:
        self._room.give_back(tenant_id, size_bytes)
        still = []
        for place in self._waiting:
            if place[2].cancelled():
                continue
            if self._fits(place[0], place[1]):
                self._room.take(place[0], place[1])
                place[2].set_result(None)
            else:
                still.append(place)
        self._waiting = still
