"""How much a step may compute so that its tokens are in time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.step_cost import LinearCost, StepCost, StepFeatures
from scheduler.config import ComposerConfig, SchedulerConfig
from scheduler.learn import StepModel
from scheduler.request import Slo
from scheduler.running import InFlightTimes, Pace
from scheduler.step.budget import StepBudget
from scheduler.step.first_tokens import FirstTokens
from scheduler.step.harvest import Harvest

# A millisecond a token and nothing for the step.
_LINE = LinearCost(0.0, 1e-3)
_CONFIG = replace(
    ComposerConfig(),
    dynamic_chunk=True,
    harvest_step_s=9.0,
    min_chunk_tokens=1,
    max_overhead_share=None,
)


def test_a_step_ends_earlier_for_promised_rows_that_sit_it_out() -> None:
    """A token is due in a second; with half of that kept, half as many tokens fit before it."""
    pace = Pace(1)
    pace.start(0, Slo(tpot_s=10.0), 1.0, 0.0)
    model = StepModel(StepCost("flat", _LINE, _LINE), margin=1.0)
    budget = StepBudget(_CONFIG, pace, model)
    first_tokens = FirstTokens(SchedulerConfig(), 1, budget, InFlightTimes(), model)
    harvest = Harvest(_CONFIG, budget, first_tokens, 0.2)
    for kept_s, num_tokens in ((0.0, 1_000), (0.5, 500)):
        budget.kept_s = kept_s
        assert budget.prefill_tokens(StepFeatures(), 5_000, 0.0) == pytest.approx(num_tokens, abs=1)
        harvest.begin(StepFeatures(), 0.0)
        fits = harvest.prompt_tokens(StepFeatures(), 0, 5_000, 0.0)
        assert fits == pytest.approx(num_tokens, abs=1)


@pytest.mark.parametrize(
    ("intercept_s", "num_decodes", "num_tokens"),
    [
        # What a step costs by itself is a tenth of it: 2 ms and a token's, of 30 ms.
        (0.002, 0, 28),
        # The decodes' time counts to it as well: 12 ms, and a token's, of 130.
        (0.002, 10, 118),
        # A step that costs nothing by itself lasts ten milliseconds all the same.
        (0.0, 0, 10),
        # Half a second: the engine's most tokens come first.
        (0.5, 0, 300),
    ],
)
def test_a_step_is_no_longer_than_length_saves(
    intercept_s: float, num_decodes: int, num_tokens: int
) -> None:
    """Prompts fill a step until what it costs without them is the share that it may be."""
    line = LinearCost(intercept_s, 1e-3)
    model = StepModel(StepCost("flat", line, line), margin=1.0)
    config = replace(_CONFIG, max_overhead_share=0.1)
    budget = StepBudget(config, Pace(1), model)
    decodes = StepFeatures(num_decode_tokens=num_decodes)
    assert budget.prefill_tokens(decodes, 300, 0.0) == pytest.approx(num_tokens, abs=1)
    # Never below the least chunk, nor where full steps are asked for.
    patient = StepBudget(replace(config, min_chunk_tokens=64), Pace(1), model)
    assert patient.prefill_tokens(decodes, 300, 0.0) == pytest.approx(max(64, num_tokens), abs=1)
    full = StepBudget(replace(config, dynamic_chunk=False), Pace(1), model)
    assert full.prefill_tokens(decodes, 300, 0.0) == 300
