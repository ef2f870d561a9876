"""Keeping the lease of a batch while something is done to it, and learning that it is lost."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from gateway.ports import BatchSteps, Clock

LEASE_S: Final = 60.0
_RENEW_S: Final = LEASE_S / 6


class Hold:
    """Hold a batch that was handed out for `LEASE_S`."""

    def __init__(self, steps: BatchSteps, batch_id: UUID, clock: Clock) -> None:
        self._steps = steps
        self._batch_id = batch_id
        self._clock = clock
        self._renewed_s = clock.monotonic()

    async def still(self) -> bool:
        """Prolong the lease in time; False where the batch was cancelled, or another is done."""
        now_s = self._clock.monotonic()
        if now_s - self._renewed_s < _RENEW_S:
            return True
        self._renewed_s = now_s
        return await self._steps.hold(self._batch_id, lease_s=LEASE_S)
