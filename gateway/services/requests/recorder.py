"""Keeping records of finished requests: made at a request's end, written in batches behind it.

Only what is sampled is kept, which was decided before (`Timeline.is_sampled`): errors, missed
promises, what was preempted, degraded or slow, and a share of the rest. What a tenant can make of
it is bounded three times over. A minute has so many records in all and a tenth of that for each
tenant, less where many have theirs, of which refusals and other failures have a half, so that a
flood of them hides nothing that was slow. What waits for the database is bounded in bytes, for each
tenant too, and a record is of bounded size. What is over any bound is dropped and counted.

The store may be away or slow: records wait up to the bound, a batch is tried again for a while and
then let go of, and no request waits for any of it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from uuid import UUID

import msgspec

from gateway.background import Background
from gateway.domain.request_record import RequestRecord
from gateway.domain.shared_room import SharedRoom
from gateway.domain.timeline import Timeline
from gateway.ports import Clock, RequestRecordStore
from gateway.services.requests.details import record_of

logger = logging.getLogger(__name__)

MAX_RECORD_BYTES: Final = 16 << 10
BATCH_ROWS: Final = 200
_WINDOW_S: Final = 60.0
_LAST_WRITE_S: Final = 2.0
_TENANTS: Final = 10

_encoder = msgspec.json.Encoder()


class Dropped(StrEnum):
    """Say why a record was not kept: too many a minute, no room to wait, too large, no store."""

    RATE = "rate"
    ROOM = "room"
    SIZE = "size"
    STORE = "store"


@dataclass(frozen=True, slots=True)
class RecordBounds:
    """Say how many records there may be a minute, 0 of which are none, and what may wait.

    Records are gathered for `gather_s`; a batch that fails so often is dropped.
    """

    per_minute: int = 600
    waiting_bytes: int = 4 << 20
    gather_s: float = 0.25
    retry_s: tuple[float, ...] = (0.5, 1.0, 2.0)
    max_tries: int = 8


class RequestRecorder:
    """Keep records while `running` is entered; call `tell` with each request that is over."""

    def __init__(
        self,
        store: RequestRecordStore,
        *,
        bounds: RecordBounds = RecordBounds(),
        on_dropped: Callable[[Dropped, int], None] = lambda why, number: None,
        clock: Clock = time,
    ) -> None:
        self._store = store
        self._bounds = bounds
        self._on_dropped = on_dropped
        self._clock = clock
        self._waiting: deque[tuple[RequestRecord, int]] = deque()
        self._room = SharedRoom(bounds.waiting_bytes, of_tenant=bounds.waiting_bytes // 4)
        self._arrived = asyncio.Event()
        self._tries = 0
        self._window_s = clock.monotonic()
        # Of this minute, and of that what failed.
        self._told = self._minute()
        self._failed: Counter[UUID] = Counter()

    @property
    def num_waiting(self) -> int:
        """Say how many records wait for the store."""
        return len(self._waiting)

    def tell(self, timeline: Timeline) -> None:
        """Keep a request that is over, if it is sampled and there is room; never raises."""
        if not timeline.is_sampled or timeline.tenant_id is None or not self._bounds.per_minute:
            return
        try:
            self._keep(timeline, timeline.tenant_id)
        except Exception:
            # It is over and answered: whatever is wrong with its record is no fault of it.
            logger.exception("a request is not recorded")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Write while the block runs; on leaving, what waits if that goes quickly."""
        async with Background(
            "recording requests",
            self.write,
            interval_s=None,
            wake=self._arrived,
            retry_s=self._bounds.retry_s,
        ):
            yield
        try:
            async with asyncio.timeout(_LAST_WRITE_S):
                await self.write(gather=False)
        except Exception as exc:
            logger.warning("%d requests are not recorded: %r", self.num_waiting, exc)

    async def write(self, *, gather: bool = True) -> None:
        """Gather records for a moment and insert all. Raises: `StoreUnavailable`."""
        if gather:
            await asyncio.sleep(self._bounds.gather_s)
        while self._waiting:
            batch = [self._waiting[n][0] for n in range(min(BATCH_ROWS, len(self._waiting)))]
            try:
                await self._store.insert(batch)
            except Exception:
                self._tries += 1
                if self._tries >= self._bounds.max_tries:
                    self._let_go(len(batch))
                    self._on_dropped(Dropped.STORE, len(batch))
                raise
            self._let_go(len(batch))

    def _keep(self, timeline: Timeline, tenant_id: UUID) -> None:
        if not self._takes(tenant_id, has_failed=timeline.status >= 400):
            self._on_dropped(Dropped.RATE, 1)
            return
        record = record_of(timeline)
        if record is None:
            return
        num_bytes = len(_encoder.encode(record))
        if num_bytes > MAX_RECORD_BYTES:
            self._on_dropped(Dropped.SIZE, 1)
            return
        if num_bytes > self._room.left(tenant_id):
            self._on_dropped(Dropped.ROOM, 1)
            return
        timeline.is_kept = True
        self._waiting.append((record, num_bytes))
        self._room.take(tenant_id, num_bytes)
        self._arrived.set()

    def _takes(self, tenant_id: UUID, *, has_failed: bool) -> bool:
        """Count a record into this minute; False: it has had as many as it may."""
        now = self._clock.monotonic()
        if now - self._window_s >= _WINDOW_S:
            self._window_s, self._told = now, self._minute()
            self._failed.clear()
        if not self._told.left(tenant_id):
            return False
        if has_failed:
            if self._failed[tenant_id] >= -(-self._told.of_tenant // 2):
                return False
            self._failed[tenant_id] += 1
        self._told.take(tenant_id, 1)
        return True

    def _minute(self) -> SharedRoom:
        most = max(1, self._bounds.per_minute)
        return SharedRoom(most, of_tenant=-(-most // _TENANTS), least=1)

    def _let_go(self, number: int) -> None:
        self._tries = 0
        for _ in range(number):
            record, num_bytes = self._waiting.popleft()
            self._room.give_back(record.tenant_id, num_bytes)
