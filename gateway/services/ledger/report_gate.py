"""How many reports are read from the ledger at a time: a few, and of a tenant fewer.

A report holds a connection of the few that reports have. Those of a tenant wait for each other
first, so that however many one asks for, another's waits for a place and not for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from gateway.errors import GatewayError, Overloaded, TenantLimited

# One less than there are connections for reports: the audit log is read beside them.
MAX_RUNNING: Final = 3
MAX_RUNNING_OF_TENANT: Final = 2
_MAX_WAITING_OF_TENANT: Final = 8
_WAIT_S: Final = 5.0
_RETRY_AFTER_S: Final = 5.0


@dataclass(slots=True)
class _Turnstile:
    places: asyncio.Semaphore
    num_here: int = field(default=0)


class ReportGate:
    """Let reports through as there is room. `whose` is a tenant, or the organisation itself."""

    def __init__(
        self,
        *,
        max_running: int = MAX_RUNNING,
        max_running_of_tenant: int = MAX_RUNNING_OF_TENANT,
        wait_s: float = _WAIT_S,
    ) -> None:
        self._places = asyncio.Semaphore(max_running)
        self._max_of_tenant = max_running_of_tenant
        self._wait_s = wait_s
        self._of_tenant: dict[UUID, _Turnstile] = {}

    @asynccontextmanager
    async def running(self, whose: UUID) -> AsyncIterator[None]:
        """Hold a place while the block runs.

        Raises: `TenantLimited`: the tenant's own reports take too long; `Overloaded`: others' do.
        """
        turnstile = self._of_tenant.get(whose)
        if turnstile is None:
            turnstile = _Turnstile(asyncio.Semaphore(self._max_of_tenant))
            self._of_tenant[whose] = turnstile
        if turnstile.num_here >= self._max_of_tenant + _MAX_WAITING_OF_TENANT:
            raise _busy_tenant()
        turnstile.num_here += 1
        try:
            async with (
                self._place(turnstile.places, _busy_tenant),
                self._place(self._places, _busy),
            ):
                yield
        finally:
            turnstile.num_here -= 1
            if not turnstile.num_here:
                del self._of_tenant[whose]

    @asynccontextmanager
    async def _place(
        self, places: asyncio.Semaphore, refusal: Callable[[], GatewayError]
    ) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._wait_s):
                await places.acquire()
        except TimeoutError:
            raise refusal() from None
        try:
            yield
        finally:
            places.release()


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
