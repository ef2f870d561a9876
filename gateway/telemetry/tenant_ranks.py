"""Which few tenants have a label of their own: those with the most tokens lately.

All others are `other`, so that series are bounded however many tenants there are. What a tenant
uses is remembered with a half-life, of a bounded number of them: where more come, the least are
forgotten, which can only have been far from the first ranks. Who has a label keeps it until another
has used half as much again, or they would take turns. A tenant that comes back begins at zero,
which Prometheus takes for a restart of that counter; what it used in between was counted as
`other`, so that sums of rates are right.
"""

from __future__ import annotations

from heapq import nlargest
from typing import Final
from uuid import UUID

_HALF_LIFE_S: Final = 300.0
_RANK_S: Final = 15.0
_MAX_KNOWN: Final = 1024
_STAYS: Final = 1.5


class TenantRanks:
    """Keep the `size` first tenants by tokens used; times are in seconds, by any one clock."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._used: dict[UUID, float] = {}
        self._ranked_s: float | None = None
        self.first: frozenset[UUID] = frozenset()

    def use(self, tenant_id: UUID, tokens: int, now: float) -> bool:
        """Count what a tenant used, and tell whether it has a label."""
        used = self._used
        used[tenant_id] = used.get(tenant_id, 0.0) + tokens
        if self._ranked_s is None:
            self._ranked_s = now
        if len(self.first) < self._size:
            # At once, so that the first minute of a server is not all `other`.
            self.first |= {tenant_id}
        elif now - self._ranked_s >= _RANK_S:
            self._rank(now)
        if len(used) > _MAX_KNOWN:
            self._used = dict(nlargest(_MAX_KNOWN // 2, used.items(), key=lambda item: item[1]))
        return tenant_id in self.first

    def _rank(self, now: float) -> None:
        assert self._ranked_s is not None
        fade = 0.5 ** ((now - self._ranked_s) / _HALF_LIFE_S)
        self._ranked_s = now
        used = {tenant_id: tokens * fade for tenant_id, tokens in self._used.items()}
        self._used = used

        def rank(tenant_id: UUID) -> float:
            tokens: float = used[tenant_id]
            return tokens * _STAYS if tenant_id in self.first else tokens

        self.first = frozenset(nlargest(self._size, used, key=rank))
