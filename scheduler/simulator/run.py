"""The virtual clock: drives a scheduler and a simulated engine through a workload.

The engine runs steps back to back: a step begins when it was launched and the one before it has
ended. The scheduler takes no time. An arrival is offered at its own time, so between the plan
and the end of the step that runs then, just as in production; it is planned for with the step
after. With two steps in flight the next one is planned as soon as one more may be. A caller that
cancels does so at its own time too, or when the step has come back that made its answer long
enough for it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from heapq import heappop, heappush

from engine.contract import EngineInfo, StepPlan, StepResult
from engine.simulated import SimulatedEngine
from engine.step_cost import StepCost
from scheduler.config import SchedulerConfig
from scheduler.order import Tokens
from scheduler.request import RequestOutput
from scheduler.simulator.recorder import Recorder
from scheduler.simulator.records import Record, Run
from scheduler.simulator.setup import Machine, Serving, open_engine, open_scheduler
from scheduler.simulator.time_service import TimeService
from scheduler.simulator.workload import Arrival, Workload

# Returns true where the run has shown enough.
OnEnd = Callable[[Sequence[Record]], bool | None]
OpenScheduler = Callable[[EngineInfo, SchedulerConfig], Serving]

# How long a scheduler may hold requests back without a step, as one does that gathers a batch.
_IDLE_TICK_S = 0.005
_MAX_IDLE_S = 600.0


def simulate(
    machine: Machine,
    config: SchedulerConfig,
    workload: Workload,
    *,
    until_s: float | None = None,
    prior: StepCost | None = None,
    open_with: OpenScheduler | None = None,
    checks: bool = False,
    on_end: OnEnd | None = None,
) -> Run:
    """Run a workload to its end, or to `until_s` on the virtual clock.

    The scheduler begins with `prior` for what steps cost, which is the truth where it is None;
    `open_with` makes another one than production's. `on_end` is told of the requests that each
    step ended, and may end the run. `checks` has every plan refereed, at
    several times the cost.
    """
    lengths: dict[str, int] = {}
    engine = open_engine(machine, output_lengths=lengths, checks=checks)
    fairness = config.fairness
    run = Run(
        workload,
        fairness.prices,
        unit=Tokens(fairness.prices),
        output_cost=fairness.prices.output,
        band_shares=fairness.band_shares,
    )
    time_service = None
    if fairness.unit == "time":
        time_service = TimeService(engine.info, machine.cost)
        run.unit = time_service.unit
    if open_with is None:
        open_with = partial(open_scheduler, prior=prior or machine.cost)
    recorder = Recorder(run, time_service)
    clock = _Simulation(run, open_with(engine.info, config), engine, lengths, recorder)
    started_s = time.perf_counter()
    clock.drive(until_s, on_end)
    run.wall_s = time.perf_counter() - started_s
    return run


class _Simulation:
    """Hold what is in flight, and the time."""

    def __init__(
        self,
        run: Run,
        scheduler: Serving,
        engine: SimulatedEngine,
        lengths: dict[str, int],
        recorder: Recorder,
    ) -> None:
        self._run = run
        self._scheduler = scheduler
        self._engine = engine
        self._lengths = lengths
        self._recorder = recorder
        self._arrivals = run.workload.arrivals
        self._num_offered = 0
        self._num_arrived = 0
        self._num_backlog = 0
        self._now = 0.0
        self._engine_free_s = 0.0
        # When requests are cancelled, the next one first.
        self._cancels: list[tuple[float, str]] = []
        self._num_cancelled_tokens: dict[str, int] = {}
        # Plans with their results and the times at which they end.
        self._in_flight: deque[tuple[StepPlan, StepResult, float]] = deque()

    def drive(self, until_s: float | None, on_end: OnEnd | None) -> None:
        """Advance until there is nothing left, or the time is over."""
        depth = self._scheduler.info.depth
        while until_s is None or self._now < until_s:
            self._offer_until(self._now)
            plan = self._scheduler.plan(self._now)
            expired = self._recorder.note_outputs(self._scheduler.take_expired(), self._now)
            self._num_backlog -= sum(record.is_backlog for record in expired)
            if on_end is not None and expired and on_end(expired):
                break
            if plan is not None:
                self._launch(plan)
                if len(self._in_flight) < depth:
                    continue
            if not self._in_flight:
                if not self._wait():
                    break
                continue
            ended = self._collect()
            if on_end is not None and ended and on_end(ended):
                break
        self._run.end_s = self._now

    def _launch(self, plan: StepPlan) -> None:
        self._recorder.note_plan(plan, self._now)
        result = self._engine.launch(plan)
        begin_s = max(self._now, self._engine_free_s)
        self._engine_free_s = begin_s + result.step_s
        self._run.busy_s += result.step_s
        self._in_flight.append((plan, result, self._engine_free_s))

    def _collect(self) -> list[Record]:
        _, handle, end_s = self._in_flight.popleft()
        self._offer_until(end_s)
        self._now = end_s
        outputs = self._scheduler.report(self._engine.collect(handle), end_s)
        ended = self._recorder.note_outputs(outputs, end_s)
        if self._num_cancelled_tokens:
            ended += self._cancel_long(outputs)
        self._num_backlog -= sum(record.is_backlog for record in ended)
        return ended

    def _wait(self) -> bool:
        """Let the time pass in which nothing runs; false where nothing will come any more."""
        next_s = self._next_arrival_s()
        if self._recorder.num_live:
            idle_s = self._now + _IDLE_TICK_S
            assert idle_s - self._engine_free_s < _MAX_IDLE_S, "requests wait and nothing runs"
            self._now = idle_s if next_s is None else min(idle_s, next_s)
            return True
        if next_s is None:
            return False
        self._now = max(self._now, next_s)
        return True

    def _next_arrival_s(self) -> float | None:
        if self._num_arrived == len(self._arrivals):
            return None
        return self._arrivals[self._num_arrived].at_s

    def _offer_until(self, time_s: float) -> None:
        """Offer what has arrived by then, each at its own time, and top the backlog up."""
        arrivals = self._arrivals
        while self._num_arrived < len(arrivals) and arrivals[self._num_arrived].at_s <= time_s:
            self._cancel_until(arrivals[self._num_arrived].at_s)
            self._offer(arrivals[self._num_arrived], is_backlog=False)
            self._num_arrived += 1
        self._cancel_until(time_s)
        workload = self._run.workload
        if workload.backlog is None or time_s > workload.duration_s:
            return
        while self._num_backlog < workload.backlog_depth:
            if not self._offer(next(workload.backlog).at(time_s), is_backlog=True):
                return
            self._num_backlog += 1

    def _offer(self, arrival: Arrival, *, is_backlog: bool) -> bool:
        request = arrival.request(self._num_offered)
        self._num_offered += 1
        self._lengths[request.request_id] = arrival.num_output_tokens
        answer = self._scheduler.offer(request, arrival.at_s)
        self._recorder.note_offer(request.request_id, arrival, answer, is_backlog=is_backlog)
        if arrival.cancel_after_s is not None:
            heappush(self._cancels, (arrival.at_s + arrival.cancel_after_s, request.request_id))
        if arrival.cancel_after_tokens is not None:
            self._num_cancelled_tokens[request.request_id] = arrival.cancel_after_tokens
        return self._run.records[-1].reject is None

    def _cancel_until(self, time_s: float) -> None:
        """Cancel what has been given up by then, each at its own time."""
        while self._cancels and self._cancels[0][0] <= time_s:
            cancel_s, request_id = heappop(self._cancels)
            self._cancel(request_id, cancel_s)

    def _cancel_long(self, outputs: Iterable[RequestOutput]) -> list[Record]:
        """Cancel those whose callers have seen enough of them."""
        enough = self._num_cancelled_tokens
        return [
            record
            for output in outputs
            if output.num_output_tokens >= enough.get(output.request_id, 1 << 62)
            for record in self._cancel(output.request_id, self._now)
        ]

    def _cancel(self, request_id: str, now: float) -> list[Record]:
        self._num_cancelled_tokens.pop(request_id, None)
        output = self._scheduler.cancel(request_id, now)
        return [] if output is None else self._recorder.note_outputs([output], now)
