"""How much of prompts a step computes beside the last chunk of one whose first token is promised.

That token comes when the step has ended. A full step takes a fifth of a second on a GPU and more,
so who was promised a tenth would be late by what others send, however early its own prompt is
begun. So once its last chunk is in, a step takes no more prompts, and batch work, than end in time.

And whoever comes waits for the steps in flight before its own. Were they full, who was promised
less than that would be refused, and as nothing of it ran no step would ever be shorter. So while
there was lately a short prompt with a promise, be it let in or not, steps are so short that another
would be in time that comes as one begins.

Short steps pay what any step costs for fewer tokens. As where rows sit out (`water_level`), the
part of its time that the machine works falls by `max_loss` at most: who is promised so little that
more would be lost is late, and so is who would be late beside nobody; for those nothing is cut.
"""

from __future__ import annotations

from dataclasses import replace

from engine.step_cost import StepFeatures
from scheduler.config import SchedulerConfig
from scheduler.learn import StepModel
from scheduler.order import NEVER
from scheduler.request import Band
from scheduler.running import InFlightTimes
from scheduler.sequence import Sequence
from scheduler.step.budget import LEAST_TOKENS, StepBudget
from scheduler.step.water_level import least_work_s

# Who had a request so long ago will soon have another: who is refused is told to wait for a second.
_LATELY_S = 2.0
# Of its promise: a prompt that takes longer by itself gains little by short steps before it.
_SHORT = 0.25
# Promises that are looked at, the tightest ones.
_MOST_EXPECTED = 32


class FirstTokens:
    """Cut the room for prompts of one step after another; see the module."""

    def __init__(
        self,
        config: SchedulerConfig,
        depth: int,
        step_budget: StepBudget,
        in_flight_times: InFlightTimes,
        step_model: StepModel,
    ) -> None:
        is_cut = config.composer.dynamic_chunk
        self._max_loss = config.fairness.max_throughput_loss if is_cut else 0.0
        self._step_budget = step_budget
        self._step_model = step_model
        self._in_flight_times = in_flight_times
        self._ttft_fraction = config.admission.ttft_fraction
        self._depth = depth
        # By what was promised: until when one is expected, and how long its prompt takes.
        self._expected: dict[tuple[float, Band], tuple[float, float]] = {}
        # Of the step: when it is planned, what it has without prompts, and the room for these.
        self._now, self._step, self._room = 0.0, StepFeatures(), 0

    def expect(self, sequence: Sequence, now: float) -> None:
        """Note a request that has come, which may be refused."""
        request = sequence.request
        ttft_s = request.slo.ttft_s
        if not self._max_loss or ttft_s is None or sequence.prefill_s > _SHORT * ttft_s:
            return
        promise = ttft_s, request.band
        until_s, prefill_s = self._expected.get(promise, (now, 0.0))
        if until_s < now:
            prefill_s = 0.0
        self._expected[promise] = now + _LATELY_S, max(prefill_s, sequence.prefill_s)
        if len(self._expected) > _MOST_EXPECTED:
            del self._expected[max(self._expected)]

    def limit_s(self, fixed_s: float, full_s: float, band: Band, now: float) -> float:
        """Say how long a step may take for the sake of those who may come while it runs.

        Args: `fixed_s`, what it costs without what may be cut of it; `full_s`, with all of that,
        which is of `band` and waits for nobody below.
        """
        if not self._expected or not self._step_budget.is_calibrated:
            return full_s
        limit_s, least_s = full_s, self._least_s(fixed_s, full_s)
        for promise, (until_s, prefill_s) in list(self._expected.items()):
            ttft_s, of_band = promise
            if until_s < now:
                del self._expected[promise]
            elif of_band <= band:
                own_s, in_s = fixed_s + prefill_s, self._ttft_fraction * ttft_s
                # Who comes as the step before is back waits for one step alone.
                if in_s >= least_s + own_s:
                    waits_s = in_s - max(least_s, own_s)
                    limit_s = min(limit_s, max(least_s, waits_s / self._depth))
        return limit_s

    def begin(self, step: StepFeatures, room: int, band: Band, now: float) -> int:
        """Begin with the prompts of a step, of `band` and below, that has `room` for so many.

        Returns: the room that it has for the sake of those who may come.
        """
        self._now, self._step, self._room = now, step, room
        if not self._expected:
            return room
        fixed_s, full_s = self._prices_s()
        limit_s = self.limit_s(fixed_s, full_s, band, now)
        if limit_s == full_s:
            return room
        # Where a token costs more than a step does, prompts go on all the same.
        return max(min(LEAST_TOKENS, room), self._step_budget.solve(step, limit_s, room))

    def room_beside(self, sequence: Sequence, step: StepFeatures, room: int) -> int:
        """Say how much of the room for prompts is left, the last chunk of one being in the step."""
        budget = self._step_budget
        if not (self._max_loss and budget.is_calibrated) or sequence.start_by_s == NEVER:
            return room
        times, margin = self._in_flight_times, self._step_model.margin
        limit_s = sequence.deadline_s - self._now - times.left_s(self._now, stretch=margin)
        if budget.price(step) > limit_s:
            return room
        budget.first_s = min(budget.first_s, limit_s)
        least_s = self._least_s(*self._prices_s())
        return budget.solve(step, max(limit_s, least_s), room)

    def _prices_s(self) -> tuple[float, float]:
        """Price the step without prompts, and with all that it has room for."""
        full = replace(self._step, num_prefill_tokens=self._room)
        return self._step_budget.price(self._step), self._step_budget.price(full)

    def _least_s(self, fixed_s: float, full_s: float) -> float:
        return fixed_s + least_work_s(full_s - fixed_s, fixed_s, self._max_loss)
