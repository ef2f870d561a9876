"""End running requests whose key has been revoked or has expired.

A key that ends is refused at its next request by the authentication; what it has running is found
here: when the epoch of keys moves (within a second, in every process), and every five seconds in
any case, so that Redis may be away. What the epoch names as ended is ended at once, so that the
database may be.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Final, Protocol

from gateway.background import Background
from gateway.errors import AuthenticationFailed
from gateway.services.quotas import QuotaService

INTERVAL_S: Final = 5.0


class KnowsDeadKeys(Protocol):
    async def dead_keys(self, kids: Collection[str]) -> set[str]:
        """Return those that are revoked, expired or gone. Raises: `StoreUnavailable`."""
        ...


class KeyWatch:
    """Look at the keys of what runs, while `running` is entered."""

    def __init__(
        self, keys: KnowsDeadKeys, quotas: QuotaService, *, interval_s: float = INTERVAL_S
    ) -> None:
        self._keys = keys
        self._quotas = quotas
        self._interval_s = interval_s
        self._changed = asyncio.Event()

    def running(self) -> Background:
        """Look in the background while the block runs."""
        return Background(
            "looking at the keys of running requests",
            self.look,
            interval_s=self._interval_s,
            wake=self._changed,
            level=logging.DEBUG,
        )

    async def keys_changed(self) -> None:
        """Look soon: some key or tenant was changed."""
        self._changed.set()

    def end(self, names: Collection[str]) -> None:
        """End what runs on keys and tenants of these kids and ids."""
        for lease in self._quotas.live:
            principal = lease.terms.principal
            if principal.kid in names or str(principal.tenant_id) in names:
                lease.fail(_ended())

    async def look(self) -> int:
        """End what runs on dead keys; return how many requests. Raises: `StoreUnavailable`."""
        live = list(self._quotas.live)
        kids = {lease.terms.principal.kid for lease in live}
        dead = await self._keys.dead_keys(kids) if kids else set()
        ended = [lease for lease in live if lease.terms.principal.kid in dead]
        for lease in ended:
            lease.fail(_ended())
        return len(ended)


def _ended() -> AuthenticationFailed:
    return AuthenticationFailed("The API key of this request was revoked or expired.")
