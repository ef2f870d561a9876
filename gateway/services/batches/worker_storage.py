"""Tenants that store as much as they may: nothing more of their batches is computed.

What a batch has computed is kept, and becomes its files, whatever its tenant stores: so it is what
runs next that has to wait until files are removed. Answers that are no file yet count too, each at
its bytes. A tenant is above its bound by what its requests answer between two looks.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final
from uuid import UUID

from gateway.background import JITTER, Background
from gateway.ports import BatchStore

INTERVAL_S: Final = 10.0


class FullStorage:
    """Know which tenants are at their bounds; enter `running` to have it looked at."""

    def __init__(self, batches: BatchStore, *, max_stored_bytes: int) -> None:
        self._batches = batches
        self._max_stored_bytes = max_stored_bytes
        self._full: Collection[UUID] = frozenset()

    def running(self) -> Background:
        """Look while the block runs."""
        return Background(
            "looking whose storage batches fill",
            self.look,
            interval_s=INTERVAL_S,
            jitter=JITTER,
            at_once=True,
        )

    def has(self, tenant_id: UUID) -> bool:
        """Tell whether a tenant was at its bound when that was looked at."""
        return tenant_id in self._full

    async def look(self) -> None:
        """Look once. Raises: `StoreUnavailable`."""
        self._full = frozenset(await self._batches.full_tenants(self._max_stored_bytes))
