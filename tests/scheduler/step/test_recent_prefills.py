"""What the prompts of each tenant cost lately."""

from __future__ import annotations

import numpy as np
import pytest

from engine.contract import SequenceSlice, StepPlan
from engine.step_cost import LinearCost, StepCost, StepFeatures
from scheduler.learn import StepModel
from scheduler.step.draft import Step
from scheduler.step.recent_prefills import RecentPrefills
from waiting import make_sequence

_LINE = LinearCost(0.0, 1e-3)


def test_a_newcomer_had_no_prompts() -> None:
    """However many tenants come, what one had computed counts for it and for nobody else."""
    prefills = RecentPrefills(StepModel(StepCost("flat", _LINE, _LINE)))
    sequence = make_sequence(256)
    sequence.account = (0, 3, 3, 0)
    none = np.empty(0, dtype=np.intp)
    plan = StepPlan(0, slices=[SequenceSlice(0, 0, 256, (), True)])
    step = Step(plan, [], [sequence], none, none.astype(np.intc), StepFeatures(), False)
    prefills.note(step, 1)
    everybody = np.arange(1_000)
    costs_s = prefills.of(everybody, 1)
    assert costs_s[3] == pytest.approx(0.001)
    assert np.flatnonzero(costs_s).tolist() == [3]
