"""How many reports are read from the ledger at a time: a few, and whose turn it is.

A report holds a connection of the few that reports have, for as long as the ledger may be read. A
place that is free goes to the organisation that has had the least of them lately, in seconds, of
it to the tenant, and the last one only to a tenant that has none: however many ask for long
reports, another's begins with the first of theirs that ends. It waits until then, and not for those
that came before it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final
from uuid import UUID

from gateway.errors import GatewayError, Overloaded, TenantLimited
from gateway.ports import Clock

# One less than there are connections for reports: the audit log is read beside them.
MAX_RUNNING: Final = 3
MAX_RUNNING_OF_TENANT: Final = 2
_MAX_WAITING_OF_TENANT: Final = 8
# For the tenant's own reports.
_WAIT_S: Final = 5.0
# For others': longer than any may be read.
_PATIENCE_S: Final = 35.0
_RETRY_AFTER_S: Final = 5.0
_HALF_LIFE_S: Final = 60.0
_MAX_KNOWN: Final = 256


@dataclass(eq=False, slots=True)
class _Waiting:
    whose: UUID
    organisation_id: UUID
    place: asyncio.Future[None]


class ReportGate:
    """Let reports through as there is room. `whose` is a tenant, or the organisation itself."""

    def __init__(
        self,
        *,
        max_running: int = MAX_RUNNING,
        max_running_of_tenant: int = MAX_RUNNING_OF_TENANT,
        wait_s: float = _WAIT_S,
        patience_s: float = _PATIENCE_S,
        clock: Clock = time,
    ) -> None:
        self._num_free = max_running
        self._max_of_tenant = max_running_of_tenant
        self._wait_s = wait_s
        self._patience_s = patience_s
        self._clock = clock
        self._running: Counter[UUID] = Counter()
        self._waiting: list[_Waiting] = []
        # For how long, as of when: it fades.
        self._used: dict[UUID, tuple[float, float]] = {}

    @asynccontextmanager
    async def running(self, whose: UUID, organisation_id: UUID) -> AsyncIterator[None]:
        """Hold a place while the block runs.

        Raises: `TenantLimited`: the tenant's own reports take too long; `Overloaded`: others' do.
        """
        num_waiting = sum(waiting.whose == whose for waiting in self._waiting)
        if num_waiting >= _MAX_WAITING_OF_TENANT:
            raise _busy_tenant()
        await self._enter(whose, organisation_id)
        since_s = self._clock.monotonic()
        try:
            yield
        finally:
            for one in {whose, organisation_id}:
                self._note_used(one, since_s)
            self._leave(whose)

    async def _enter(self, whose: UUID, organisation_id: UUID) -> None:
        waiting = _Waiting(whose, organisation_id, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._let_in()
        try:
            if await _is_done(waiting.place, self._wait_s):
                return
            if self._running[whose] >= self._max_of_tenant:
                raise _busy_tenant()
            if not await _is_done(waiting.place, self._patience_s - self._wait_s):
                raise _busy()
        except BaseException:
            if waiting.place.done():
                self._leave(whose)
            else:
                self._waiting.remove(waiting)
            raise

    def _leave(self, whose: UUID) -> None:
        self._num_free += 1
        self._running[whose] -= 1
        if not self._running[whose]:
            del self._running[whose]
        self._let_in()

    def _let_in(self) -> None:
        while ready := [waiting for waiting in self._waiting if self._may_begin(waiting.whose)]:
            # Of equals who came first.
            chosen = min(ready, key=partial(self._had_s, now=self._clock.monotonic()))
            self._waiting.remove(chosen)
            self._num_free -= 1
            self._running[chosen.whose] += 1
            chosen.place.set_result(None)

    def _may_begin(self, whose: UUID) -> bool:
        num_running = self._running[whose]
        if not num_running:
            return self._num_free > 0
        return num_running < min(self._num_free, self._max_of_tenant)

    def _had_s(self, waiting: _Waiting, now: float) -> tuple[float, float]:
        return self._used_s(waiting.organisation_id, now), self._used_s(waiting.whose, now)

    def _used_s(self, whose: UUID, now: float) -> float:
        used_s, at_s = self._used.get(whose, (0.0, 0.0))
        return float(used_s * 0.5 ** ((now - at_s) / _HALF_LIFE_S))

    def _note_used(self, whose: UUID, since_s: float) -> None:
        now = self._clock.monotonic()
        used_s = self._used_s(whose, now) + now - since_s
        # Those who read last come last.
        self._used.pop(whose, None)
        self._used[whose] = used_s, now
        if len(self._used) > _MAX_KNOWN:
            del self._used[next(iter(self._used))]


async def _is_done(place: asyncio.Future[None], within_s: float) -> bool:
    await asyncio.wait([place], timeout=within_s)
    return place.done()


def _busy_tenant() -> GatewayError:
    return TenantLimited(
        "Other reports of this tenant are still being read. Try again when they are there.",
        code="too_many_reports",
        retry_after_s=_RETRY_AFTER_S,
    )


def _busy() -> GatewayError:
    return Overloaded(
        "Other reports are still being read. Try again later.",
        code="too_many_reports",
        retry_after_s=_RETRY_AFTER_S,
    )
