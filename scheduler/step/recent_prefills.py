"""What the prompts of each tenant cost lately, in seconds of a step.

A tenant's part of the machine is what its rows have and what its prompts do. Prompts come in a few
steps out of many, so what they cost is spread over the steps that follow.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.step_cost import StepFeatures
from scheduler.learn import StepModel
from scheduler.sequence import MEMBER
from scheduler.step.draft import Step

_NUM_STEPS = 256
_KEPT = 1.0 - 1.0 / _NUM_STEPS


class RecentPrefills:
    """Average over about the last 256 steps, by the entries of tenants."""

    def __init__(self, step_model: StepModel) -> None:
        self._step_model = step_model
        self._mean_s = np.zeros(64)
        self._at_step = np.zeros(64, dtype=np.int64)

    def note(self, step: Step, number: int) -> None:
        """Take the prompts of a step in."""
        for sequence, chunk in zip(step.slices, step.plan.slices, strict=True):
            tenant = sequence.account[MEMBER]
            if tenant >= len(self._mean_s):
                self._grow(tenant)
            cost_s = self._step_model.added_s(StepFeatures(chunk.n_tokens, 0, chunk.start, 0))
            kept = _KEPT ** (number - self._at_step.item(tenant))
            self._mean_s[tenant] = self._mean_s[tenant] * kept + cost_s / _NUM_STEPS
            self._at_step[tenant] = number

    def of(self, tenants: NDArray[np.intp], number: int) -> NDArray[np.float64]:
        """Return the means of tenants at a step."""
        if tenants[-1] >= len(self._mean_s):
            self._grow(int(tenants[-1]))
        found: NDArray[np.float64] = self._mean_s[tenants]
        if found.any():
            found = found * _KEPT ** (number - self._at_step[tenants])
        return found

    def _grow(self, tenant: int) -> None:
        size = 2 * tenant + 2
        self._mean_s = np.resize(self._mean_s, size) * (np.arange(size) < len(self._mean_s))
        self._at_step = np.resize(self._at_step, size)
