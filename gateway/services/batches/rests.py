"""Resting between the parts of long work that others meet on the event loop and in PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

# Whoever was slow because a store was is not to be slower still.
_MAX_REST_S: Final = 0.2


class Rests:
    """Rest `ratio` times as long as each part took."""

    def __init__(
        self,
        ratio: float,
        monotonic: Callable[[], float],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._ratio = ratio
        self._sleep = sleep
        self._monotonic = monotonic
        self._began_s = monotonic()

    async def before_more(self) -> None:
        """Rest for what has passed since the last rest, or since this was made."""
        took_s = self._monotonic() - self._began_s
        await self._sleep(min(self._ratio * took_s, _MAX_REST_S))
        self._began_s = self._monotonic()
