"""What each request of a plan costs its tenant where service is time, from the plan alone.

Reckoned apart from the scheduler's own charges, with what the machine's steps truly take, and as
the work is done: a prompt's chunks when they run, not all of it on admission.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.contract import EngineInfo, StepPlan
from engine.step_cost import StepCost, StepFeatures
from scheduler.learn import MachineTime, StepModel


@dataclass(slots=True)
class _Held:
    """Hold whose slot it is, how much KV it has of its own, and how far its prompt ever was."""

    request_id: str
    own_tokens: int
    num_ran: int
    num_prompt: int


class TimeService:
    """Price plans in their order, in tokens' worth of machine time."""

    def __init__(self, info: EngineInfo, cost: StepCost) -> None:
        self.unit = MachineTime(info, StepModel(cost))
        self._of_slot: dict[int, _Held] = {}
        self._num_ran: dict[str, int] = {}
        self._num_rows = 0
        self._rows_cost = 0.0

    @property
    def output(self) -> float:
        """Return what an output token has cost on average."""
        return self._rows_cost / self._num_rows if self._num_rows else self.unit.output

    def price(self, plan: StepPlan) -> dict[str, float]:
        """Return what each request is given by a step, by its id."""
        costs: dict[str, float] = {}
        self._change_hands(plan)
        for chunk in plan.slices:
            held = self._of_slot[chunk.slot]
            end = min(chunk.start + chunk.n_tokens, held.num_prompt)
            if chunk.start >= held.num_ran and end > chunk.start:
                cost = self.unit.rest(end, chunk.start)
                cost += self.unit.chunk_surcharge(chunk.start, chunk.n_tokens)
                costs[held.request_id] = cost
            held.num_ran = max(held.num_ran, chunk.start + chunk.n_tokens)
        prices = self.unit.step(StepFeatures.of_plan(plan))
        contexts = plan.decodes.positions
        for slot, context in zip(plan.decodes.slots, contexts, strict=True):
            held = self._of_slot[slot]
            cost = prices.row + prices.context_token * context
            costs[held.request_id] = costs.get(held.request_id, 0.0) + cost
            held.own_tokens += 1
            self._rows_cost += cost
        self._num_rows += len(contexts)
        for held in self._of_slot.values():
            cost = prices.held_token * held.own_tokens
            costs[held.request_id] = costs.get(held.request_id, 0.0) + cost
        return costs

    def _change_hands(self, plan: StepPlan) -> None:
        for slot in plan.released:
            held = self._of_slot.pop(slot, None)
            if held is not None:
                self._num_ran[held.request_id] = held.num_ran
        for new in plan.admitted:
            own_tokens = len(new.token_ids) - new.num_computed
            num_ran = max(new.num_computed, self._num_ran.get(new.request_id, 0))
            self._of_slot[new.slot] = _Held(
                new.request_id, own_tokens, num_ran, new.num_prompt_tokens
            )
