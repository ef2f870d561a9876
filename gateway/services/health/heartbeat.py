"""Whether the event loop still turns, seen from outside of it.

A task on the loop notes the time every second; a thread compares. A loop that hangs answers no
probe, which a supervisor takes for dead; what is left to do here is to say so in the log while it
lasts, with the line of code that the loop hangs in. A process that was stopped as a whole
(SIGSTOP, a sleeping laptop) finds its thread late too, and is given a new start. The thread has a
loop of its own, as it must run where the event loop does not.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from gateway.background import Background

logger = logging.getLogger(__name__)

BEAT_S: Final = 1.0
DEAD_AFTER_S: Final = 10.0


class Heartbeat:
    """Beat on the running event loop and watch from a thread; enter `beating` to start both."""

    def __init__(
        self,
        *,
        beat_s: float = BEAT_S,
        dead_after_s: float = DEAD_AFTER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._beat_s = beat_s
        self._dead_after_s = dead_after_s
        self._clock = clock
        self._beaten_s = clock()
        self._stalled = False
        self._ended = threading.Event()

    @property
    def age_s(self) -> float:
        """Return how long ago the loop last turned."""
        return self._clock() - self._beaten_s

    @property
    def alive(self) -> bool:
        """Tell the thread's last verdict, which the next beat mends."""
        return not self._stalled

    @asynccontextmanager
    async def beating(self) -> AsyncIterator[None]:
        """Beat until the block ends. The watched thread is the one that enters."""
        watched = threading.get_ident()
        self._beaten_s = self._clock()
        thread = threading.Thread(
            target=self._watch, args=(watched,), name="heartbeat", daemon=True
        )
        thread.start()
        try:
            async with Background("the beat", self.beat, interval_s=self._beat_s, at_once=True):
                yield
        finally:
            self._ended.set()
            thread.join()

    async def beat(self) -> None:
        """Note that the loop turns."""
        self._beaten_s = self._clock()
        self._stalled = False

    def _watch(self, watched: int) -> None:
        looked_s = self._clock()
        while not self._ended.wait(self._beat_s):
            now, before_s = self._clock(), looked_s
            looked_s = now
            if now - before_s > self._dead_after_s:
                # This thread did not run either: the whole process stood still.
                self._beaten_s = now
            elif not self._stalled and now - self._beaten_s > self._dead_after_s:
                self._stalled = True
                frame = sys._current_frames().get(watched)
                stack = "".join(traceback.format_stack(frame)) if frame else "unknown"
                logger.error("the event loop has not turned for %g s:\n%s", self.age_s, stack)
