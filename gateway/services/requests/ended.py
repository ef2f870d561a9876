"""Who is told of a request when it is over: traces, logs, the record of decisions, metrics.

A request may be over before the scheduler has said what became of it: an answer that a stop string
ended is sent while the engine still computes the step that its cancellation will end with. It is
told of once that has come, within `PATIENCE_S` at the latest; until then it is one of
`num_waiting`, of which there are `MAX_WAITING` at most: beyond that it is told of as it is.

All on the event loop's thread. What a listener does is its own; one that raises is logged once and
keeps nothing from the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from gateway.domain.timeline import Timeline

logger = logging.getLogger(__name__)

Listener = Callable[[Timeline], None]

PATIENCE_S: Final = 2.0
# Steps take milliseconds to tens of them.
_LOOK_S: Final = 0.05
MAX_WAITING: Final = 4096


class EndedRequests:
    """Tell listeners of each request exactly once."""

    def __init__(self, *, patience_s: float = PATIENCE_S, max_waiting: int = MAX_WAITING) -> None:
        self._patience_s = patience_s
        self._max_waiting = max_waiting
        self._listeners: list[Listener] = []
        self._silenced: set[int] = set()
        self._waiting: dict[str, Timeline] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def num_waiting(self) -> int:
        """Count those that are over and not yet told of."""
        return len(self._waiting)

    def add(self, listener: Listener) -> None:
        """Have a listener told of every request that ends from now on."""
        self._listeners.append(listener)

    def tell(self, timeline: Timeline) -> None:
        """Tell of a request that is over, now or once its facts have come."""
        assert timeline.ended_s is not None, "it is not over"
        if timeline.is_complete or len(self._waiting) >= self._max_waiting:
            self._tell(timeline)
            return
        self._waiting[timeline.request_id] = timeline
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look)

    def flush(self) -> None:
        """Tell of those that still wait, as they are."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, {}
        for timeline in waiting.values():
            self._tell(timeline)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        late_s = loop.time() - self._patience_s
        for timeline in list(self._waiting.values()):
            assert timeline.ended_s is not None
            if timeline.is_complete or timeline.ended_s < late_s:
                del self._waiting[timeline.request_id]
                self._tell(timeline)
        self._timer = loop.call_later(_LOOK_S, self._look) if self._waiting else None

    def _tell(self, timeline: Timeline) -> None:
        timeline.take_facts()
        for number, listener in enumerate(self._listeners):
            try:
                listener(timeline)
            except Exception:
                if number not in self._silenced:
                    self._silenced.add(number)
                    logger.exception("a listener failed on a request that ended; said once")
