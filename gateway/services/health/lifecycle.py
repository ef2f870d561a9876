"""Where a process is between its start and its end.

STARTING → SERVING → DRAINING → REFUSING, never back; a stop during the start skips SERVING.
DRAINING still takes requests, so that a balancer has the time to see that readiness is gone;
REFUSING takes none and lets those that run end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum


class Phase(IntEnum):
    """Name the stations in their order."""

    STARTING = 0
    SERVING = 1
    DRAINING = 2
    REFUSING = 3

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(slots=True)
class StartStep:
    """Time one part of the start; `ended_s` is None while it runs or after it failed."""

    name: str
    begun_s: float
    ended_s: float | None = None


class Lifecycle:
    """Know the phase, since when it holds, and what a start still waits for.

    Everything belongs to one thread; `clock` gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._phase = Phase.STARTING
        self._since_s = clock()
        self._steps: list[StartStep] = []

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def for_s(self) -> float:
        """Return how long the phase has held."""
        return self._clock() - self._since_s

    @property
    def steps(self) -> tuple[StartStep, ...]:
        """Return the parts of the start that have begun, in that order."""
        return tuple(self._steps)

    @property
    def waits_for(self) -> str | None:
        """Name what began first of what the start waits for; None once it is over."""
        if self._phase is not Phase.STARTING:
            return None
        return next((step.name for step in self._steps if step.ended_s is None), "startup")

    def advance(self, phase: Phase) -> None:
        """Enter a later phase."""
        assert phase > self._phase, f"{phase.word} does not follow {self._phase.word}"
        self._phase = phase
        self._since_s = self._clock()

    @contextmanager
    def starting(self, name: str) -> Iterator[None]:
        """Time a part of the start, and say that it is waited for while it runs."""
        step = StartStep(name, self._clock())
        self._steps.append(step)
        yield
        step.ended_s = self._clock()
