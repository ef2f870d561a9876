"""Drive a batching baseline and a simulated engine in virtual time and keep what comes out."""

from __future__ import annotations

from collections import defaultdict, deque

from engine.contract import StepPlan, StepResult
from engine.simulated import SimulatedEngine
from fakes import ManualClock
from scheduler.batching.batch_scheduler import BatchScheduler
from scheduler.inline import InlineLoop
from scheduler.request import Admit, Request, RequestOutput


class VirtualRun:
    """Offer requests at their arrivals; `batches` are who was admitted batch by batch."""

    def __init__(self, scheduler: BatchScheduler, engine: SimulatedEngine) -> None:
        self.scheduler = scheduler
        self.clock = ManualClock()
        self.loop = InlineLoop(scheduler, engine, self.clock, on_step=self._note)
        self.steps: list[tuple[StepPlan, StepResult]] = []
        self.batches: list[list[str]] = []
        self.tokens: dict[str, list[int]] = defaultdict(list)
        self.last: dict[str, RequestOutput] = {}
        self._coming: deque[Request] = deque()

    def offer_at(self, request: Request) -> None:
        """Let a request arrive when its time comes, later than those before it."""
        self._coming.append(request)

    def turn(self) -> None:
        """Do one step, or pass the time until something is to be done."""
        while self._coming and self._coming[0].arrival_s <= self.clock.now:
            answer = self.scheduler.offer(self._coming.popleft(), self.clock.now)
            assert isinstance(answer, Admit)
        self.take(self.loop.turn())
        if self.loop.idle:
            waits = [request.arrival_s for request in list(self._coming)[:1]]
            if self.scheduler.due_s is not None:
                waits.append(self.scheduler.due_s)
            assert not waits or min(waits) > self.clock.now, "it was due and did not go"
            self.clock.now = min(waits, default=self.clock.now)

    def cancel(self, request_id: str) -> None:
        output = self.scheduler.cancel(request_id, self.clock.now)
        self.take([] if output is None else [output])

    def finish(self, max_turns: int = 5000) -> None:
        """Run until nobody comes and nothing waits or runs."""
        for _ in range(max_turns):
            self.turn()
            snapshot = self.scheduler.snapshot()
            if self.loop.idle and not self._coming and not snapshot.queued + snapshot.running:
                return
        raise AssertionError("the scheduler never ran dry")

    def take(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            last = self.last.get(output.request_id)
            assert last is None or last.finish_reason is None, "output after the end"
            self.tokens[output.request_id] += output.token_ids
            self.last[output.request_id] = output

    def _note(self, plan: StepPlan, result: StepResult) -> None:
        self.clock.now += result.step_s
        self.steps.append((plan, result))
        for sequence in plan.admitted:
            # A batch's prompts may take several steps; its first one begins at slot 0.
            if sequence.slot == 0:
                self.batches.append([])
            # What pads a request goes by its name.
            if sequence.request_id not in self.batches[-1]:
                self.batches[-1].append(sequence.request_id)
