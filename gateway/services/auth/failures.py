"""Requests that no key or token opened: told in a line a second, and limited by client.

Who fails again and again is told to wait, and told slowly: a flood that waits for its answers comes
no faster than connections allow, and the event loop has time for others. A live key is never held
up by it: whoever has one does not fail, whichever address it shares with a flood. Rates are kept as
GCRA's times, a number for each client that failed lately, and of the newest of those alone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from typing import Final

from gateway.domain.address import counted_as
from gateway.errors import AuthenticationFailed, TooManyFailures
from gateway.ports import Clock

log = logging.getLogger(__name__)

# A client may fail so often at once, and then once in so many seconds.
BURST: Final = 30
INTERVAL_S: Final = 1.0
# How long an answer to a client that fails more often is held, and how many at most.
_HOLD_S, _MAX_HELD = 1.0, 1024
_LOG_S: Final = 1.0
_MAX_CLIENTS: Final = 10_000
_MAX_TOLD: Final = 1_000


class Failures:
    """Count failures of authentication by client, as `gateway.domain.address` has clients."""

    def __init__(
        self,
        clock: Clock = time,
        *,
        max_clients: int = _MAX_CLIENTS,
        hold_s: float = _HOLD_S,
        max_held: int = _MAX_HELD,
        log_s: float = _LOG_S,
    ) -> None:
        self._clock = clock
        self._max_clients = max_clients
        self._hold_s = hold_s
        self._max_held = max_held
        self._num_held = 0
        self._log_s = log_s
        # When each client's next failure is due, were it to keep the rate; oldest failure first.
        self._due_at: OrderedDict[str, float] = OrderedDict()
        # Since the last line of the log.
        self._num_untold = 0
        self._untold: Counter[str] = Counter()
        self._is_any_limited = False
        self._last_detail: str | None = None

    async def answer(
        self, address: str | None, failed: AuthenticationFailed
    ) -> AuthenticationFailed:
        """Count a failure; return it, or after a while what its client gets who fails too often."""
        client = counted_as(address or "")
        wait_s = self._wait_s(client)
        self._note(client, failed.detail, is_limited=wait_s > 0)
        if wait_s <= 0:
            return failed
        await self._hold()
        return TooManyFailures(retry_after_s=wait_s)

    async def _hold(self) -> None:
        if self._num_held >= self._max_held:
            return
        self._num_held += 1
        try:
            await asyncio.sleep(self._hold_s)
        finally:
            self._num_held -= 1

    def _wait_s(self, client: str) -> float:
        """Count a failure that is in time; return how long a client has to wait, 0 for not."""
        now = self._clock.monotonic()
        due_at = max(self._due_at.pop(client, now), now)
        wait_s = due_at - now - (BURST - 1) * INTERVAL_S
        self._due_at[client] = due_at if wait_s > 0 else due_at + INTERVAL_S
        if len(self._due_at) > self._max_clients:
            self._due_at.popitem(last=False)
        return max(wait_s, 0.0)

    def _note(self, client: str, detail: str | None, *, is_limited: bool) -> None:
        if not self._num_untold:
            asyncio.get_running_loop().call_later(self._log_s, self._tell)
        self._num_untold += 1
        self._is_any_limited |= is_limited
        self._last_detail = detail or "none was sent"
        if client in self._untold or len(self._untold) < _MAX_TOLD:
            self._untold[client] += 1

    def _tell(self) -> None:
        """Log what failed lately: a warning only where somebody fails too often."""
        [(client, most)] = self._untold.most_common(1)
        log.log(
            logging.WARNING if self._is_any_limited else logging.INFO,
            "%d requests without a live key or token, %d of them from %s; the last: %s",
            self._num_untold,
            most,
            client or "an unknown address",
            self._last_detail,
        )
        self._num_untold, self._is_any_limited = 0, False
        self._untold.clear()
