"""How much a step may compute so that its tokens are in time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.step_cost import LinearCost, StepCost, StepFeatures
from scheduler.config import ComposerConfig
from scheduler.learn import StepModel
from scheduler.request import Slo
from scheduler.running import Pace
from scheduler.step.budget import StepBudget

# A millisecond a token and nothing for the step.
_LINE = LinearCost(0.0, 1e-3)
_CONFIG = replace(ComposerConfig(), dynamic_chunk=True, harvest_step_s=9.0, min_chunk_tokens=1)


def test_a_step_ends_earlier_for_promised_rows_that_sit_it_out() -> None:
    """A token is due in a second; with half of that kept, half as many tokens fit before it."""
    pace = Pace(1)
    pace.start(0, Slo(tpot_s=10.0), 1.0, 0.0)
    budget = StepBudget(_CONFIG, pace, StepModel(StepCost("flat", _LINE, _LINE), margin=1.0))
    for kept_s, num_tokens in ((0.0, 1_000), (0.5, 500)):
        budget.kept_s = kept_s
        assert budget.prefill_tokens(StepFeatures(), 5_000, 0.0) == pytest.approx(num_tokens, abs=1)
        assert budget.harvest_tokens(StepFeatures(), 5_000, 0.0) == pytest.approx(num_tokens, abs=1)
