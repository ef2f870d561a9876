"""The steps that the engine was given and has not answered, and what becomes of all if one fails.

With two steps in flight, step N+1 is planned before the tokens of step N are known. Three rules
keep that exact:

- A row is planned as if step N had not ended it. If it did, what N+1 draws for it is dropped.
- A row that is sent back keeps the token that is still in flight, and is not admitted again
  before that token has landed.
- Blocks and slots that step N frees may be planned into N+2 while N+1 still runs: the engine
  runs steps in order, so the old use is over before the new one starts. Content is published to
  the prefix cache only when the step that computed it has come back.

A step that fails takes its rows with it: which of them broke it is not known, and a request that
breaks steps must not be tried again beside others. Everything else is queued again with all that
it has drawn, since the engine has then forgotten all KV. Where a step merely found no memory, its
rows are queued again too, and steps are smaller from then on (`scheduler.step.limits`). A row
that the engine names as failed ends alone, and nothing that it computed is found again.
"""

from __future__ import annotations

import math
from collections import deque

from engine.contract import StepResult
from scheduler.lifecycle import Lifecycle
from scheduler.request import RequestOutput
from scheduler.sequence import Sequence
from scheduler.step.draft import Step
from scheduler.step.limits import StepLimits

_LONGER = 1.0 + 1e-6


class InFlight:
    """Keep steps in the order of their plans until they are reported or lost."""

    def __init__(self, limits: StepLimits, lifecycle: Lifecycle) -> None:
        self._limits = limits
        self._lifecycle = lifecycle
        self._steps: deque[Step] = deque()
        # When the last one was reported, while there was always something to do since.
        self._reported_s = math.inf

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, step: Step) -> None:
        """Note that a step's plan goes to the engine."""
        self._steps.append(step)

    def rest(self) -> None:
        """Note that there is nothing to plan: the machine stands still once these are done."""
        if not self._steps:
            self._reported_s = math.inf

    def take(self, result: StepResult, now: float, waited_s: float = 0.0) -> tuple[Step, float]:
        """Take out the step that a result is of, the oldest.

        `waited_s` of the time since the step before another engine had the machine.
        Returns: it, and how many seconds of the machine it took. That is the time since the step
        before it, where there was always something to do: planning, handing out and waiting for
        the interpreter take their part of it as well, and on a small model the larger one.
        """
        step = self._steps.popleft()
        assert step.plan.step_id == result.step_id, "steps are reported in plan order"
        took_s = now - self._reported_s - waited_s
        self._reported_s = now
        # An engine that takes no time teaches nothing; what only rounding adds is nothing.
        is_longer = result.step_s > 0.0 and took_s > _LONGER * result.step_s
        return step, took_s if is_longer else result.step_s

    def fail(self, step_id: int, reason: str, now: float) -> list[RequestOutput]:
        """Lose all steps and end the rows of one; returns the last output of each of them."""
        step = self._find(step_id)
        return self._lose([*step.decodes, *step.slices], reason, now)

    def take_back(self, step_id: int, now: float) -> bool:
        """Lose all steps, and keep the next ones below the size of one that found no memory.

        Returns: False where there is no smaller one; nothing is lost then.
        """
        step = self._find(step_id)
        num_rows = len(step.decodes) + len(step.slices)
        if not self._limits.shrink(step.plan.num_tokens, num_rows, decodes=not step.slices):
            return False
        self._lose([], "", now)
        return True

    def clear(self) -> None:
        """Forget the steps."""
        self._steps.clear()
        self._lifecycle.running.in_flight_times.lose()
        self._reported_s = math.inf

    def _find(self, step_id: int) -> Step:
        found = [step for step in self._steps if step.plan.step_id == step_id]
        assert found, "only a step in flight fails"
        return found[0]

    def _lose(self, failed: list[Sequence], reason: str, now: float) -> list[RequestOutput]:
        rows = [s for step in self._steps for s in (*step.decodes, *step.slices)]
        self.clear()
        self._lifecycle.running.max_num_rows = self._limits.max_num_rows
        return self._lifecycle.lose_steps(rows, failed, reason, now)
