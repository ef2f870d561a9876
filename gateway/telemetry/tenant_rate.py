"""So many a second of each tenant, and a burst: a bound on what is told of any one of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final
from uuid import UUID

_MAX_TENANTS: Final = 10_000


class TenantRate:
    """Count by tenant; whoever has no key is one tenant more, None."""

    def __init__(
        self, *, per_s: float, burst: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_s = per_s
        self._burst = burst
        self._clock = clock
        # What each has left, as of when.
        self._left: dict[UUID | None, tuple[float, float]] = {}

    def take(self, tenant_id: UUID | None) -> bool:
        """Take one where there is one left."""
        now_s = self._clock()
        left, at_s = self._left.get(tenant_id, (self._burst, now_s))
        left = min(self._burst, left + (now_s - at_s) * self._per_s)
        if len(self._left) >= _MAX_TENANTS and tenant_id not in self._left:
            # All begin anew with a burst: nothing grows.
            self._left.clear()
        is_left = left >= 1
        self._left[tenant_id] = (left - 1 if is_left else left, now_s)
        return is_left
