"""How much a step may compute so that its tokens are in time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from engine.step_cost import LinearCost, StepCost, StepFeatures
from scheduler.config import ComposerConfig
from scheduler.learn import StepModel
from scheduler.request import Slo
from scheduler.running import Pace
from scheduler.step.budget import StepBudget

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
    budget = _budget(_CONFIG, StepModel(StepCost("flat", _LINE, _LINE), margin=1.0), pace=pace)
    for kept_s, num_tokens in ((0.0, 1_000), (0.5, 500)):
        budget.kept_s = kept_s
        assert budget.prefill_tokens(StepFeatures(), 5_000, 0.0) == pytest.approx(num_tokens, abs=1)
        limit_s = budget.harvest_limit_s(StepFeatures(), 0.0)
        fits = budget.harvest_tokens(StepFeatures(), 5_000, limit_s)
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
    budget = _budget(config, model)
    decodes = StepFeatures(num_decode_tokens=num_decodes)
    assert budget.prefill_tokens(decodes, 300, 0.0) == pytest.approx(num_tokens, abs=1)
    # Never below the least chunk, nor where full steps are asked for.
    patient = _budget(replace(config, min_chunk_tokens=64), model)
    assert patient.prefill_tokens(decodes, 300, 0.0) == pytest.approx(max(64, num_tokens), abs=1)
    full = _budget(replace(config, dynamic_chunk=False), model)
    assert full.prefill_tokens(decodes, 300, 0.0) == 300


@pytest.mark.parametrize(
    ("max_loss", "num_online", "limit_s"),
    [
        # What the step costs for the online rows, 4 ms and a row's, is a fifth of it.
        (0.2, 1, 0.025),
        (0.2, 4, 0.04),
        (0.5, 1, 0.01),
        # No longer than a step with batch work may be.
        (0.2, 20, 0.06),
        # Nobody is there to wait for it, or nothing may be lost.
        (0.2, 0, 0.06),
        (0.0, 1, 0.06),
    ],
)
def test_batch_work_makes_steps_as_long_as_the_loss_asks_for(
    max_loss: float, num_online: int, limit_s: float
) -> None:
    """Beside online rows a step is their own cost over what may be lost of the throughput."""
    line = LinearCost(0.004, 1e-3)
    model = StepModel(StepCost("flat", line, line), margin=1.0)
    budget = _budget(replace(_CONFIG, harvest_step_s=0.06), model, max_loss=max_loss)
    online = StepFeatures(num_decode_tokens=num_online)
    assert budget.harvest_limit_s(online, 0.0) == pytest.approx(limit_s)


def test_a_step_of_batch_work_alone_is_no_longer_than_length_saves() -> None:
    """Whoever comes waits for its end, so what it costs by itself is the share that it may be."""
    line = LinearCost(0.001, 1e-3)
    model = StepModel(StepCost("flat", line, line), margin=1.0)
    config = replace(_CONFIG, harvest_step_s=0.06, max_overhead_share=0.05)
    assert _budget(config, model).harvest_limit_s(StepFeatures(), 0.0) == pytest.approx(0.04)
    patient = replace(config, max_overhead_share=0.01)
    assert _budget(patient, model).harvest_limit_s(StepFeatures(), 0.0) == pytest.approx(0.06)


def test_what_is_too_little_for_batch_work_is_saved_up() -> None:
    """A row that costs 50 ms runs in the fourth step of 4 ms, each of which leaves it 16."""
    line = LinearCost(0.003, 1e-3, per_decode_context_token_s=1e-3)
    model = StepModel(StepCost("flat", line, line), margin=1.0)
    budget = _budget(replace(_CONFIG, harvest_step_s=0.06), model)
    online = StepFeatures(num_decode_tokens=1)
    for granted in (0, 0, 0, 1) * 2:
        limit_s = budget.harvest_limit_s(online, 0.0)
        assert budget.harvest_rows(online, np.array([49], np.intc), limit_s) == granted
        budget.note_harvested(anything=granted > 0)
    # However long nothing is taken, a step is as long as it may be.
    for _ in range(100):
        limit_s = budget.harvest_limit_s(online, 0.0)
        budget.note_harvested(anything=False)
    assert limit_s == pytest.approx(0.06)
    assert budget.may_ever_run(online, np.array([55, 56, 9], np.intc)).tolist() == [
        True,
        False,
        True,
    ]


def test_batch_rows_are_counted_by_what_each_attends_to() -> None:
    """Rows in turn fill what there is: those with long contexts first are fewer."""
    line = LinearCost(0.003, 1e-3, per_decode_context_token_s=1e-3)
    budget = _budget(_CONFIG, StepModel(StepCost("flat", line, line), margin=1.0), max_loss=0.1)
    online = StepFeatures(num_decode_tokens=1)
    limit_s = budget.harvest_limit_s(online, 0.0)
    assert limit_s == pytest.approx(0.04)
    for num_tokens, num_rows in (([20, 20, 2, 2], 1), ([2, 2, 20, 20], 3), ([40], 0), ([], 0)):
        assert budget.harvest_rows(online, np.array(num_tokens, np.intc), limit_s) == num_rows


def _budget(
    config: ComposerConfig, model: StepModel, *, pace: Pace | None = None, max_loss: float = 0.2
) -> StepBudget:
    return StepBudget(config, pace or Pace(1), model, max_loss=max_loss)
