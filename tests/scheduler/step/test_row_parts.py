"""What tenants have of a step, over bands and with what their prompts cost."""

from __future__ import annotations

import numpy as np
import pytest

from engine.step_cost import LinearCost, StepCost
from scheduler.config import FairnessConfig
from scheduler.learn import StepModel
from scheduler.request import Band
from scheduler.running import RunningSet
from scheduler.step.recent_prefills import RecentPrefills
from scheduler.step.row_parts import RowParts, TenantRows
from scheduler.step.water_level import Seconds, least_work_s, worthwhile_work_s

_LINE = LinearCost(0.0, 1e-3)
LOSS = 0.2


def row_parts() -> RowParts:
    prefills = RecentPrefills(StepModel(StepCost("flat", _LINE, _LINE)))
    config = FairnessConfig(
        max_throughput_loss=LOSS, band_shares={Band.DEFAULT: 0.1, Band.FLEX: 0.05, Band.DUE: 0.05}
    )
    return RowParts(config, RunningSet(8), prefills)


def tenants(*rows: tuple[float, Band], prefilled_s: list[float] | None = None) -> TenantRows:
    """Have tenants of equal weight with rows that ask for so many seconds."""
    asked_s = np.array([asked for asked, _ in rows])
    prefilled = np.zeros(len(rows)) if prefilled_s is None else np.array(prefilled_s)
    bands = np.array([band for _, band in rows], dtype=np.intc)
    ones = np.ones(len(rows))
    return TenantRows(np.arange(len(rows)), asked_s, ones, prefilled, asked_s + prefilled, bands)


def parts(found: TenantRows, fixed_s: float) -> Seconds:
    return row_parts().of(found, fixed_s, np.inf, shares=True)


def test_a_lower_band_is_not_held_for_less_than_is_lost() -> None:
    """Where rows cost hardly more than any step does, it has what keeps that worth it."""
    found = parts(tenants((1.0, Band.PRIORITY), (1.0, Band.DEFAULT)), 1.9)
    assert found == pytest.approx([1.0, worthwhile_work_s(2.0, 1.9) - 1.0])
    assert worthwhile_work_s(2.0, 1.9) > least_work_s(2.0, 1.9, LOSS)


def test_bands_have_together_what_must_be_done() -> None:
    """What is kept for the lowest one is taken from the one above it, and is not had besides."""
    found = parts(tenants((0.6, Band.DEFAULT), (9.0, Band.FLEX), (9.0, Band.DUE)), 0.5)
    # For whose rows it is lost weighs a third.
    needed_s = least_work_s(18.6, 0.5, LOSS * 2 / 3)
    assert found == pytest.approx([0.6, 0.95 * needed_s - 0.6, 0.05 * needed_s])


def test_a_lower_band_has_its_share_of_all_that_runs() -> None:
    """Above one that takes all, flex has a twentieth of the two together."""
    found = parts(tenants((30.0, Band.DEFAULT), (30.0, Band.FLEX)), 0.5)
    assert found[1] == pytest.approx(0.05 * found.sum())


def test_whose_prompts_are_more_than_its_part_has_no_less_than_nothing() -> None:
    """Its rows take nothing from what others have."""
    found = parts(tenants((3.0, Band.DEFAULT), (3.0, Band.DEFAULT), prefilled_s=[0.0, 40.0]), 1.0)
    assert found == pytest.approx([3.0, 0.0])


@pytest.mark.parametrize(
    ("parts_s", "brought", "expected_s"),
    [
        # The first one runs all it has: its prompts come whatever others do.
        ([1.0, 1.0, 0.0], [5.0, 0.0, 0.0], None),
        ([1.0, 1.3, 0.2], [0.0, 1.0, 1.0], [1.0, 1.3, 0.2]),
        ([1.0, 1.3, 0.05], [0.0, 1.0, 1.0], [1.0, 1.3, 0.6914]),
    ],
)
def test_parts_are_raised_to_what_may_be_lost(
    parts_s: list[float], brought: list[float], expected_s: list[float] | None
) -> None:
    """With the prompts that held rows bring; nobody's is lowered, nor raised where it is enough."""
    found = tenants((1.0, Band.DEFAULT), (20.0, Band.DEFAULT), (20.0, Band.DEFAULT))
    raised_s = row_parts()._enough(found, np.array(parts_s), np.array(brought), 1.0)
    if expected_s is None:
        assert raised_s.sum() == pytest.approx(least_work_s(41.0, 1.0, LOSS))
    else:
        assert raised_s == pytest.approx(expected_s, abs=1e-3)
