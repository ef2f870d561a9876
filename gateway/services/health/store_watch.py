"""Whether the store of keys answers, asked as authentication asks it.

A cached key opens the door for as long as the grace of authentication; after that, a process whose
store is silent can serve nobody. It is asked every few seconds, so that readiness knows before a
client does.
"""

from __future__ import annotations

import logging
import time
from typing import Final

from gateway.background import Background
from gateway.errors import StoreUnavailable
from gateway.ports import Clock, KeyStore

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 5.0
GRACE_S: Final = 30.0
# No key has it: an id of a key is drawn, and longer.
_NOBODY: Final = "probe"


class StoreWatch:
    """Note when the store of keys last answered; enter `running` to go on asking."""

    def __init__(
        self,
        keys: KeyStore,
        clock: Clock = time,
        *,
        grace_s: float = GRACE_S,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._grace_s = grace_s
        self._interval_s = interval_s
        self._keys = keys
        self._clock = clock
        self._answered_s = clock.monotonic()
        self._missed = False

    @property
    def silent_s(self) -> float:
        """Return for how long no answer has come."""
        return self._clock.monotonic() - self._answered_s

    @property
    def answers(self) -> bool:
        """Tell whether the last answer is within the grace."""
        return self.silent_s < self._grace_s

    def running(self) -> Background:
        """Ask in the background while the block runs."""
        return Background(
            "asking the store of keys", self.ask, interval_s=self._interval_s, at_once=True
        )

    async def ask(self) -> None:
        """Ask once; silence changes nothing but the time that passes."""
        try:
            await self._keys.find(_NOBODY)
        except StoreUnavailable as exc:
            if not self._missed:
                logger.warning("the store of keys does not answer: %s", exc)
            self._missed = True
            return
        self._missed = False
        self._answered_s = self._clock.monotonic()
