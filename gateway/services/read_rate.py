"""How often a tenant may read: its models, its usage, and what the admin API has of it.

What its people change there is counted with that.

Reading holds no quota, so that who is throttled can see why; this keeps it from being free of any
bound. It is counted in this process alone: with several gateways a tenant reads as often from each,
which is what each of them can bear. Who is refused is told so slowly: a client that waits for its
answers would otherwise have thousands of them a second, each of the event loop's time. Source: the
generic cell rate algorithm, ATM Forum TM 4.0.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final
from uuid import UUID

from gateway.errors import TenantLimited
from gateway.ports import Clock

# A minute's worth may come at once.
_BURST_S: Final = 60.0
# How long a paced read waits at most for its turn.
PATIENCE_S: Final = 5.0
# After which a refusal is answered.
HOLD_S: Final = 0.25
_MAX_HELD: Final = 1024
# What a change counts for: its record in the audit log is kept for good.
CHANGE_READS: Final = 10
# Tenants that read lately; those whose rate is whole again are forgotten beyond it.
_MAX_KNOWN: Final = 1024


class ReadRate:
    """Count reads by tenant against `per_minute`, which refill continuously."""

    def __init__(self, per_minute: int, clock: Clock = time, *, hold_s: float = HOLD_S) -> None:
        self._hold_s = hold_s
        self._num_held = 0
        self._interval_s = _BURST_S / per_minute
        self._most = per_minute
        self._clock = clock
        # When each tenant has all of its reads again.
        self._whole_at: dict[UUID, float] = {}

    async def pace(self, tenant_id: UUID, reads: float) -> None:
        """Count so many reads and wait until there are, or raise `TenantLimited` as `admit`.

        For clients that ask one thing after another and cannot come back later.
        """
        try:
            wait_s = self._book(tenant_id, reads, patience_s=PATIENCE_S)
        except TenantLimited:
            await self._hold()
            raise
        if wait_s > 0:
            await asyncio.sleep(wait_s)

    async def admit(self, tenant_id: UUID, reads: float = 1) -> None:
        """Count so many reads, or wait a little and raise `TenantLimited`."""
        try:
            self.charge(tenant_id, reads)
        except TenantLimited:
            await self._hold()
            raise

    async def _hold(self) -> None:
        if self._num_held >= _MAX_HELD:
            return
        self._num_held += 1
        try:
            await asyncio.sleep(self._hold_s)
        finally:
            self._num_held -= 1

    def charge(self, tenant_id: UUID, reads: float = 1) -> None:
        """Count so many reads, or raise `TenantLimited`, which counts nothing."""
        self._book(tenant_id, reads, patience_s=0.0)

    def _book(self, tenant_id: UUID, reads: float, *, patience_s: float) -> float:
        """Count reads that are there within `patience_s`, and return in how many seconds.

        What counts for more than there ever are counts for all of them.
        """
        now, reads = self._clock.monotonic(), min(reads, self._most)
        whole_at = max(self._whole_at.get(tenant_id, now), now) + reads * self._interval_s
        wait_s = whole_at - now - _BURST_S
        # What is a rounding error above is no read above.
        if wait_s > patience_s + self._interval_s / 1000:
            raise TenantLimited(
                f"This tenant reads too often. Try again in {wait_s:.3g} s.",
                code="too_many_reads",
                retry_after_s=wait_s,
                limit="tenant.reads",
            )
        self._whole_at[tenant_id] = whole_at
        if len(self._whole_at) > _MAX_KNOWN:
            self._whole_at = {one: at for one, at in self._whole_at.items() if at > now}
        return max(0.0, wait_s)
