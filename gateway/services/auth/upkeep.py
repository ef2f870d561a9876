"""The background work of authentication: other processes' changes, and when keys were used.

One task polls the epoch of changes twice a second. When it moved, the cache forgets what was
changed, or all where that is not told, and others that keep what administrators change look again.
So what one tenant changes is no matter of another's keys, which only the cache knows while the
database is away. An epoch that cannot be read changes nothing (the cache's life is the bound then).
One that went back was lost with all that Redis held: then what is
cached is doubted, and not dropped, as the database may be away too. What has ended for good, a key
that was revoked or a tenant's all, is named as that besides: what runs on it is ended without a
question to the database, which this process may be the one that does not reach. Another task writes
`last_used_at` in one statement for all keys, at most once a minute for each.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from uuid import UUID

from gateway.background import Background
from gateway.errors import StoreUnavailable
from gateway.ports import AuthEpoch, Clock, KeyStore
from gateway.services.auth.authenticator import Authenticator

# Twice as often as a revocation may take, which has more to do than to be noticed.
EPOCH_INTERVAL_S = 0.5
USED_INTERVAL_S = 5.0
_USED_PER_KEY_S = 60.0
_ENDED = "ended:"

log = logging.getLogger(__name__)


async def tell_ended(epoch: AuthEpoch, name: str) -> None:
    """Tell all processes that a key, by its kid, or a tenant, by its id, has ended for good."""
    # Apart, as processes of an older release know the name alone; in one wait where Redis is away.
    await asyncio.gather(epoch.advance(name), epoch.advance(_ENDED + name))


class AuthUpkeep:
    """Keep an `Authenticator` in step with the store while `running` is entered."""

    def __init__(
        self,
        authenticator: Authenticator,
        keys: KeyStore,
        epoch: AuthEpoch,
        clock: Clock = time,
        *,
        on_change: Sequence[Callable[[], Awaitable[None]]] = (),
        on_ended: Callable[[Collection[str]], None] = lambda names: None,
        epoch_interval_s: float = EPOCH_INTERVAL_S,
        used_interval_s: float = USED_INTERVAL_S,
    ) -> None:
        self._authenticator = authenticator
        self._keys = keys
        self._epoch = epoch
        self._clock = clock
        self._on_change = on_change
        self._on_ended = on_ended
        self._epoch_interval_s = epoch_interval_s
        self._used_interval_s = used_interval_s
        self._seen_epoch: int | None = None
        self._pending: dict[UUID, datetime] = {}
        self._written_at: dict[UUID, float] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run both tasks; on leaving, write what was used last."""
        await self.follow_epoch()
        name = "upkeep of authentication"
        try:
            async with (
                Background(name, self.follow_epoch, interval_s=self._epoch_interval_s),
                Background(name, self.write_used, interval_s=self._used_interval_s),
            ):
                yield
        finally:
            self._written_at.clear()
            await self.write_used()

    async def follow_epoch(self) -> None:
        """Forget the keys and tenants that were changed somewhere since the last look."""
        epoch = await self._epoch.current()
        if epoch is None or epoch == self._seen_epoch:
            return
        seen, self._seen_epoch = self._seen_epoch, epoch
        if seen is None:
            return
        if epoch > seen:
            names = await self._epoch.changed(seen, epoch)
            self._authenticator.forget_changed(names)
            self._on_ended({n.removeprefix(_ENDED) for n in names or () if n.startswith(_ENDED)})
        else:
            self._authenticator.doubt_all()
        for refresh in self._on_change:
            await refresh()

    async def write_used(self) -> None:
        """Write `last_used_at` of the keys whose minute is over; the others wait."""
        self._pending.update(self._authenticator.take_used())
        now = self._clock.monotonic()
        self._written_at = {
            key: at for key, at in self._written_at.items() if now - at < _USED_PER_KEY_S
        }
        due = {key: at for key, at in self._pending.items() if key not in self._written_at}
        if not due:
            return
        try:
            await self._keys.touch(due)
        except StoreUnavailable as exc:
            log.warning("last use of %d keys not written, kept for later: %s", len(due), exc)
            return
        for key in due:
            del self._pending[key]
            self._written_at[key] = now
