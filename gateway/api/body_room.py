"""Bounds the memory of bodies that are being read or understood, for a tenant and in all.

One body is bounded by its length, and connections by their number; together they may still be more
than a machine has: four thousand bodies of which the last byte never comes. So bytes are counted as
they come, and given back once a body has become what is asked of the engine. A client that only
says how much it is going to send has taken nothing yet. A keyed request runs on without its client,
so its body is held until it has ended, and counts twice while it is read from there.
"""

from __future__ import annotations

from collections import defaultdict
from types import TracebackType
from typing import Final
from uuid import UUID

from gateway.errors import BodiesTooLarge, Saturated

MAX_BYTES: Final = 256 << 20
# What a tenant may have of it.
TENANT_SHARE: Final = 0.25
_RETRY_AFTER_S: Final = 1.0


class Bodies:
    """Count the bodies of all tenants; on the event loop alone."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._max_tenant_bytes = int(max_bytes * TENANT_SHARE)
        self._num_bytes = 0
        self._by_tenant: defaultdict[UUID, int] = defaultdict(int)

    @property
    def num_bytes(self) -> int:
        """How much there is now."""
        return self._num_bytes

    def room(self, tenant_id: UUID) -> BodyRoom:
        """Make room for one body; use as a context manager for as long as the body is there."""
        return BodyRoom(self, tenant_id)

    def take(self, tenant_id: UUID, num_bytes: int) -> None:
        """Count more. Raises: `BodiesTooLarge`, `Saturated`: there is no room."""
        if self._by_tenant[tenant_id] + num_bytes > self._max_tenant_bytes:
            raise BodiesTooLarge(retry_after_s=_RETRY_AFTER_S)
        if self._num_bytes + num_bytes > self._max_bytes:
            raise Saturated(retry_after_s=_RETRY_AFTER_S)
        self._by_tenant[tenant_id] += num_bytes
        self._num_bytes += num_bytes

    def give_back(self, tenant_id: UUID, num_bytes: int) -> None:
        """Count less."""
        self._num_bytes -= num_bytes
        self._by_tenant[tenant_id] -= num_bytes
        if not self._by_tenant[tenant_id]:
            del self._by_tenant[tenant_id]


class BodyRoom:
    """Hold what one body takes."""

    def __init__(self, bodies: Bodies, tenant_id: UUID) -> None:
        self._bodies = bodies
        self._tenant_id = tenant_id
        self._num_bytes = 0

    def grow(self, num_bytes: int) -> None:
        """Take what has come. Raises: as `Bodies.take`."""
        self._bodies.take(self._tenant_id, num_bytes)
        self._num_bytes += num_bytes

    def close(self) -> None:
        """Give all of it back; a second time changes nothing."""
        num_bytes, self._num_bytes = self._num_bytes, 0
        self._bodies.give_back(self._tenant_id, num_bytes)

    def __enter__(self) -> BodyRoom:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
