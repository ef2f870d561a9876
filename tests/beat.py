"""How long the event loop is held, whatever else its machine does."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Final

# Nothing that is sent may hold the loop for longer.
BOUND_S: Final = 0.020
BEAT_S: Final = 0.002
# Nanoseconds on a processor, nanoseconds that it waited for one, and how often it ran.
SCHEDSTAT: Final = Path("/proc/thread-self/schedstat")


class Beat:
    """Turn on the event loop every 2 ms and note the longest that it was late.

    What other processes of the machine took is left out: time in which the loop's thread could
    have run and did not, and more than this process computed meanwhile.
    """

    def __init__(self) -> None:
        self.held_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._queued_s = self._computed_s = self._due_s = 0.0
        self._timer = self._loop.call_soon(self._start)

    def _start(self) -> None:
        self._queued_s, self._computed_s = queued_s(), time.process_time()
        self._due_s = self._loop.time() + BEAT_S
        self._timer = self._loop.call_at(self._due_s, self._turn)

    def _turn(self) -> None:
        late_s = self._loop.time() - self._due_s
        if late_s > self.held_s:
            own_s = late_s - (queued_s() - self._queued_s)
            computed_s = time.process_time() - self._computed_s
            self.held_s = max(self.held_s, min(own_s, computed_s))
        self._start()

    def stop(self) -> float:
        self._timer.cancel()
        self._turn()
        self._timer.cancel()
        return self.held_s


def queued_s() -> float:
    """Return how long this thread has waited for a processor, ever."""
    return int(SCHEDSTAT.read_text().split()[1]) / 1e9
