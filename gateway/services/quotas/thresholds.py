"""Soft thresholds: says once a window that half of a limit is used, or most, or all of it.

`note` is called after every settlement and costs a comparison or two; what it finds is written in
the background. The table has one row for a scope, metric, window and percent, and only the process
whose row it is raises the event, so it is raised once however many gateways count. A rolling
window counts in slots, each with a start of its own: it can raise the same percent again in the
next slot. An event whose process dies before it is written is found again by the next settlement
anywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Final
from uuid import UUID, uuid4

from gateway.background import Background
from gateway.domain.quota import Metric, Scope
from gateway.domain.quota_event import QuotaEvent
from gateway.domain.shared_room import SharedRoom
from gateway.errors import StoreUnavailable
from gateway.ports import Clock, QuotaEventStore

logger = logging.getLogger(__name__)

_MAX_WINDOWS: Final = 10_000
# Where no percent is to be told: beyond what any window is used.
_NOTHING_PERCENT: Final = 1_000_000
_MAX_PENDING: Final = 10_000
RETRY_S: Final = 1.0
_CLOSE_S: Final = 2.0

OnRaised = Callable[[QuotaEvent], None]


class Thresholds:
    """Raise events at `percents`; enter `running` to have them written.

    `on_raised` is called for each that is new, after it was logged; with `is_delivered` it waits
    in the store for a webhook too.
    """

    def __init__(
        self,
        store: QuotaEventStore,
        percents: Sequence[int],
        *,
        is_delivered: bool = False,
        on_raised: OnRaised = lambda event: None,
        clock: Clock = time,
        retry_s: float = RETRY_S,
    ) -> None:
        self._store = store
        self._retry_s = retry_s
        self._percents = tuple(sorted(percents))
        self._is_delivered = is_delivered
        self._on_raised = on_raised
        self._clock = clock
        # How many of the percents each window has passed here, the oldest window first.
        self._passed: dict[tuple[Scope, Metric, int], int] = {}
        self._pending: deque[QuotaEvent] = deque()
        # Of which none has it all: keys of one tenant can raise thousands while the store is away.
        self._room = SharedRoom(_MAX_PENDING, of_tenant=_MAX_PENDING // 4, least=1)
        self._has_told = False
        self._wake = asyncio.Event()

    @property
    def lowest_percent(self) -> int:
        """Return below what share of its limit no window need be noted."""
        return self._percents[0] if self._percents else _NOTHING_PERCENT

    def note(
        self,
        scope: Scope,
        tenant_id: UUID | None,
        metric: Metric,
        window_start_s: int,
        used: int,
        amount: int,
    ) -> None:
        """Look at a window's present use; a limit of 0 has no share to pass.

        `window_start_s` names the window, in seconds since 1970.
        """
        if amount <= 0 or not self._percents or used * 100 < self._percents[0] * amount:
            return
        window = (scope, metric, window_start_s)
        passed = self._passed.get(window, 0)
        while passed < len(self._percents) and used * 100 >= self._percents[passed] * amount:
            is_raised = self._raise(
                QuotaEvent(
                    id=uuid4(),
                    at=datetime.fromtimestamp(self._clock.time(), UTC),
                    scope=scope,
                    tenant_id=tenant_id,
                    metric=metric,
                    window_start=datetime.fromtimestamp(window_start_s, UTC),
                    percent=self._percents[passed],
                    used=used,
                    amount=amount,
                )
            )
            if not is_raised:
                break
            passed += 1
        if window not in self._passed and len(self._passed) >= _MAX_WINDOWS:
            del self._passed[next(iter(self._passed))]
        self._passed[window] = passed

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Write in the background while the block runs; on leaving, write what is left."""
        try:
            async with Background(
                "writing threshold events",
                self.write_found,
                interval_s=None,
                wake=self._wake,
                retry_s=(self._retry_s,),
            ):
                yield
        finally:
            with contextlib.suppress(StoreUnavailable, TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await self.write()

    async def write_found(self) -> None:
        """Write as `write` does, and go on without an event that cannot be written.

        Raises: `StoreUnavailable`: the rest is kept for later.
        """
        while self._pending:
            try:
                await self.write()
            except StoreUnavailable:
                raise
            except Exception:
                # A fault of one event must not end all to come.
                logger.exception("a threshold event could not be written")
                self._done()

    async def write(self) -> None:
        """Write what was found, oldest first; raise what nobody raised before.

        Raises: `StoreUnavailable`: the rest is kept for later.
        """
        while self._pending:
            event = self._pending[0]
            is_new = await self._store.add(event, is_to_deliver=self._is_delivered)
            self._done()
            if is_new:
                logger.warning(
                    "%s has used %d %% of its %s: %d of %d",
                    event.scope,
                    event.percent,
                    event.metric.value,
                    event.used,
                    event.amount,
                )
                self._on_raised(event)

    def _raise(self, event: QuotaEvent) -> bool:
        """Have it written; without room for more of its tenant's, a later settlement finds it."""
        if not self._room.left(event.tenant_id):
            if not self._has_told:
                logger.error("too many threshold events wait for the store; some come later")
                self._has_told = True
            return False
        self._room.take(event.tenant_id, 1)
        self._pending.append(event)
        self._wake.set()
        return True

    def _done(self) -> None:
        """Let go of the oldest."""
        self._room.give_back(self._pending.popleft().tenant_id, 1)
        self._has_told = self._has_told and bool(self._pending)
