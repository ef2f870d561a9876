"""Engines whose steps do not take what their profile says."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from engine.contract import StepPlan
from engine.step_cost import StepCost, StepFeatures
from scheduler.simulator.setup import Machine


@dataclass(frozen=True, slots=True)
class NoisyCost(StepCost):
    """Price each step up to `error` above or below its profile, drawn evenly from `draw`.

    Two prices of one step differ: it is for an engine, which asks once.
    """

    draw: random.Random = field(default_factory=lambda: random.Random(0))
    error: float = 0.0

    def price_s(self, step: StepFeatures | StepPlan) -> float:
        # Not super(): a slotted dataclass is another class than the one super() was compiled in.
        return StepCost.price_s(self, step) * self.draw.uniform(1 - self.error, 1 + self.error)


def noisy(machine: Machine, error: float, *, seed: int) -> Machine:
    """Let the steps of a machine take up to `error` more or less than its profile says."""
    cost = machine.cost
    return replace(
        machine,
        cost=NoisyCost(
            f"{cost.name}±{error:g}",
            cost.small,
            cost.large,
            cost.split_num_tokens,
            random.Random(seed),
            error,
        ),
    )
