"""Drives a scheduler and an engine on the caller's own thread: no event loop, no lock.

For bulk generation, benchmarks and tests; `scheduler.service` is the one that serves.

Failures: an exception out of the engine is the caller's to see, but first every request is ended
and the engine is reset, so that the loop can be used again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from engine.contract import Engine, EngineInfo, StepPlan, StepResult
from scheduler.request import RequestOutput

OnStep = Callable[[StepPlan, StepResult], None]


class Planner(Protocol):
    """Plan steps and take their results, as `scheduler.core.Scheduler` does."""

    @property
    def info(self) -> EngineInfo: ...

    def plan(self, now: float) -> StepPlan | None: ...

    def take_expired(self) -> list[RequestOutput]: ...

    def report(self, result: StepResult, now: float) -> Iterable[RequestOutput]: ...

    def reset(self, reason: str, now: float) -> list[RequestOutput]: ...


class InlineLoop:
    """Call `turn` until `idle`; offer, cancel and extend on the scheduler in between.

    `clock` gives seconds. `on_step`, if given, is called with each step that has come back.
    """

    def __init__(
        self,
        scheduler: Planner,
        engine: Engine,
        clock: Callable[[], float],
        *,
        on_step: OnStep | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.engine = engine
        self.clock = clock
        self._on_step = on_step
        self._in_flight: deque[tuple[StepPlan, object]] = deque()
        self.idle = True

    def turn(self) -> list[RequestOutput]:
        """Launch a step if one more may be in flight, and collect the oldest if none may.

        `idle` then tells whether there was nothing to do.
        """
        try:
            return self._turn()
        except BaseException:
            self._abandon()
            raise

    def _turn(self) -> list[RequestOutput]:
        plan = self.scheduler.plan(self.clock())
        if plan is not None:
            self._in_flight.append((plan, self.engine.launch(plan)))
        self.idle = not self._in_flight
        if self.idle or (plan is not None and len(self._in_flight) < self.scheduler.info.depth):
            return self.scheduler.take_expired()
        plan, handle = self._in_flight.popleft()
        result = self.engine.collect(handle)
        if self._on_step is not None:
            self._on_step(plan, result)
        return [*self.scheduler.take_expired(), *self.scheduler.report(result, self.clock())]

    def _abandon(self) -> None:
        self._in_flight.clear()
        self.scheduler.reset("the step before failed", self.clock())
        self.engine.reset()
        self.idle = True
