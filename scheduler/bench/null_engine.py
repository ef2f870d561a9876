"""An engine that computes nothing, so that only the scheduler above it takes time."""

from __future__ import annotations

from array import array

from engine.contract import EngineInfo, StepPlan, StepResult
from engine.step_cost import StepCost

_TOKEN_ID = 7


class NullEngine:
    """Answer each plan with one and the same token for every row; a step takes what `cost` says."""

    def __init__(self, info: EngineInfo, cost: StepCost) -> None:
        assert _TOKEN_ID not in info.eos_token_ids, "requests run to their max_tokens"
        self.info = info
        self._cost = cost

    def launch(self, plan: StepPlan) -> StepResult:
        slots = plan.decodes.slots[:]
        slots.extend(piece.slot for piece in plan.slices if piece.sample)
        token_ids = array("i", [_TOKEN_ID]) * len(slots)
        return StepResult(plan.step_id, slots, token_ids, self._cost.price_s(plan))

    def collect(self, handle: object) -> StepResult:
        assert isinstance(handle, StepResult), "collect takes what launch returned"
        return handle

    def reset(self) -> None:
        """Nothing to forget."""

    def close(self) -> None:
        """Nothing to give back."""
