"""Count a request before its body is read, where reading it may cost more than a request does.

Most requests are counted with their reservation, once what they ask for is known: one operation
for all limits. That leaves what is refused before, which would cost nothing however much it takes
to read. So

- a body that is large, or does not say how large it is, is counted first;
- a short one that was refused is counted afterwards, and its key's next ones first, for a minute.

A key whose rate of requests is used up is then told so before anything of it is read.
"""

from __future__ import annotations

import time
from typing import Final

from gateway.domain import Principal
from gateway.ports import Clock
from gateway.services.expiring_cache import ExpiringCache
from gateway.services.quotas.service import QuotaService

COUNTED_FIRST_S: Final = 60.0
_MAX_KEYS: Final = 50_000


class Entry:
    """Let requests in; those of at most `short_bytes` are counted later."""

    def __init__(self, quotas: QuotaService, *, short_bytes: int, clock: Clock = time) -> None:
        self._quotas = quotas
        self._short_bytes = short_bytes
        self._clock = clock
        self._refused: ExpiringCache[bool] = ExpiringCache(
            max_entries=_MAX_KEYS, ttl_s=COUNTED_FIRST_S
        )

    async def enter(self, principal: Principal, size_bytes: int | None) -> bool:
        """Count a request now, or leave it to its reservation; tell whether it was counted.

        `size_bytes` is what its body is said to have, None where that is not said.
        Raises: `TenantLimited`: a limit on requests refuses it; `CountersUnavailable`.
        """
        is_short = size_bytes is not None and size_bytes <= self._short_bytes
        if is_short and not self._refused.get(principal.key_id.bytes, self._clock.monotonic()):
            return False
        await self._quotas.count_request(principal)
        return True

    def refused(self, principal: Principal, *, was_counted: bool) -> None:
        """Learn that a request's body was refused."""
        self._refused.put(principal.key_id.bytes, True, self._clock.monotonic())
        if not was_counted:
            self._quotas.count_later(principal)
