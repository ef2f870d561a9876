"""How much batch work a step takes along, beside online rows and without."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from engine.step_cost import LinearCost, StepCost, StepFeatures
from scheduler.config import ComposerConfig, SchedulerConfig
from scheduler.learn import StepModel
from scheduler.running import InFlightTimes, Pace
from scheduler.step.budget import StepBudget
from scheduler.step.first_tokens import FirstTokens
from scheduler.step.harvest import Harvest

_CONFIG = replace(ComposerConfig(), harvest_step_s=9.0, max_overhead_share=None)


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
    harvest = _harvest(replace(_CONFIG, harvest_step_s=0.06), model, max_loss=max_loss)
    harvest.begin(StepFeatures(num_decode_tokens=num_online), 0.0)
    assert harvest.limit_s == pytest.approx(limit_s)


def test_a_step_of_batch_work_alone_is_no_longer_than_length_saves() -> None:
    """Whoever comes waits for its end, so what it costs by itself is the share that it may be."""
    line = LinearCost(0.001, 1e-3)
    model = StepModel(StepCost("flat", line, line), margin=1.0)
    config = replace(_CONFIG, harvest_step_s=0.06, max_overhead_share=0.05)
    for share, limit_s in ((0.05, 0.04), (0.01, 0.06)):
        harvest = _harvest(replace(config, max_overhead_share=share), model)
        harvest.begin(StepFeatures(), 0.0)
        assert harvest.limit_s == pytest.approx(limit_s)


def test_what_is_too_little_for_batch_work_is_saved_up() -> None:
    """A row that costs 50 ms runs in the fourth step of 4 ms, each of which leaves it 16."""
    line = LinearCost(0.003, 1e-3, per_decode_context_token_s=1e-3)
    model = StepModel(StepCost("flat", line, line), margin=1.0)
    harvest = _harvest(replace(_CONFIG, harvest_step_s=0.06), model)
    online = StepFeatures(num_decode_tokens=1)
    for granted in (0, 0, 0, 1) * 2:
        harvest.begin(online, 0.0)
        assert harvest.num_rows(online, np.array([49], np.intc)) == granted
        harvest.note(took_any=granted > 0)
    # However long nothing is taken, a step is as long as it may be.
    for _ in range(100):
        harvest.begin(online, 0.0)
        harvest.note(took_any=False)
    assert harvest.limit_s == pytest.approx(0.06)
    assert harvest.may_ever_run(online, np.array([55, 56, 9], np.intc)).tolist() == [
        True,
        False,
        True,
    ]


def test_batch_rows_are_counted_by_what_each_attends_to() -> None:
    """Rows in turn fill what there is: those with long contexts first are fewer."""
    line = LinearCost(0.003, 1e-3, per_decode_context_token_s=1e-3)
    harvest = _harvest(_CONFIG, StepModel(StepCost("flat", line, line), margin=1.0), max_loss=0.1)
    online = StepFeatures(num_decode_tokens=1)
    harvest.begin(online, 0.0)
    assert harvest.limit_s == pytest.approx(0.04)
    for num_tokens, num_rows in (([20, 20, 2, 2], 1), ([2, 2, 20, 20], 3), ([40], 0), ([], 0)):
        assert harvest.num_rows(online, np.array(num_tokens, np.intc)) == num_rows


def _harvest(config: ComposerConfig, model: StepModel, *, max_loss: float = 0.2) -> Harvest:
    budget = StepBudget(config, Pace(1), model)
    first_tokens = FirstTokens(SchedulerConfig(), 1, budget, InFlightTimes(), model)
    return Harvest(config, budget, first_tokens, max_loss)
