"""What the prompts of each tenant cost lately."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from engine.contract import SequenceSlice, StepPlan
from engine.step_cost import LinearCost, StepCost, StepFeatures
from fakes import NOTHING_PROMISED
from scheduler.learn import StepModel
from scheduler.request import Band, Slo
from scheduler.step.draft import Step
from scheduler.step.recent_prefills import RecentPrefills
from waiting import make_sequence

_LINE = LinearCost(0.0, 1e-3, per_prefill_context_token_s=1e-4)


@pytest.fixture
def prefills() -> RecentPrefills:
    return RecentPrefills(StepModel(StepCost("flat", _LINE, _LINE)))


def step_of(
    tenant: int, band: Band = Band.DEFAULT, *, start: int = 0, slo: Slo = NOTHING_PROMISED
) -> Step:
    """Compute 256 tokens of a prompt."""
    sequence = make_sequence(start + 256, band=band)
    sequence.request = replace(sequence.request, slo=slo)
    sequence.account = (0, tenant, tenant, 0)
    none = np.empty(0, dtype=np.intp)
    plan = StepPlan(0, slices=[SequenceSlice(0, start, 256, (), True)])
    return Step(1, plan, [], [sequence], none, none.astype(np.intc), StepFeatures(), False)


def test_a_newcomer_had_no_prompts(prefills: RecentPrefills) -> None:
    """However many tenants come, what one had computed counts for it and for nobody else."""
    prefills.note(step_of(3), 1, 0.0, is_behind=False)
    everybody = np.arange(1_000)
    costs_s = prefills.of(everybody, 1)
    assert costs_s[3] == pytest.approx(0.001)
    assert np.flatnonzero(costs_s).tolist() == [3]


def test_who_came_lately_is_known_for_steps_and_for_seconds(prefills: RecentPrefills) -> None:
    """For 64 steps, however long, and for a second, however many steps that is."""
    prefills.note(step_of(3), 10, 5.0, is_behind=False)
    prefills.note(step_of(70, Band.FLEX), 10, 5.0, is_behind=False)

    def lately(number: int, now: float, band: Band = Band.DEFAULT) -> list[int]:
        found: list[int] = prefills.lately(band, number, now).tolist()
        return found

    assert lately(73, 99.0) == [3]
    assert lately(74, 99.0) == []
    assert lately(999, 5.9) == [3]
    assert lately(999, 6.1) == []
    assert lately(11, 5.1, Band.FLEX) == [3, 70]
    prefills.note(step_of(5, slo=Slo(max_gap_s=0.1)), 10, 5.0, is_behind=False)
    assert lately(11, 5.1) == [3], "what was promised something has its steps short anyway"
    assert prefills.bands_of(np.array([3, 70])).tolist() == [Band.DEFAULT, Band.FLEX]


def test_rows_bring_what_steps_keep_up_with(prefills: RecentPrefills) -> None:
    """Prompts count by what their tenant's rows had, but not of a backlog nor of batch work."""
    behind, batch, brings, newcomer = range(4)
    prefills.note(step_of(behind), 1, 0.0, is_behind=True)
    prefills.note(step_of(batch, Band.BATCH), 1, 0.0, is_behind=False)
    prefills.note(step_of(brings), 1, 0.0, is_behind=False)
    everybody = np.array([behind, batch, brings, newcomer])
    prefills.note_rows(everybody, np.full(4, 0.002), 1_000)
    assert prefills.per_decode(everybody, 1)[:2].tolist() == [0.0, 0.0]
    assert prefills.per_decode(everybody, 1)[2] == pytest.approx(0.256 / 256 / 0.002, rel=0.05)
    assert prefills.per_decode(everybody, 1)[3] == 0.0


def test_what_rows_had_is_a_mean_over_steps(prefills: RecentPrefills) -> None:
    """A tenant whose rows are held to half has brought its prompts by what it had before."""
    tenant = np.array([70])
    prefills.note(step_of(70), 2_000, 0.0, is_behind=False)
    prefills.note_rows(tenant, np.array([0.004]), 2_000)
    prefills.note_rows(tenant, np.array([0.002]), 2_004)
    expected = 0.256 / 256 / 0.004
    assert prefills.per_decode(tenant, 2_000)[0] == pytest.approx(expected, rel=0.05)


def test_what_a_chunk_reads_is_part_of_what_it_costs(prefills: RecentPrefills) -> None:
    """256 tokens of a prompt of which 1,024 are computed cost a tenth of these besides."""
    prefills.note(step_of(3, start=1_024), 1, 0.0, is_behind=False)
    assert prefills.of(np.array([3]), 1)[0] == pytest.approx((0.256 + 0.1024) / 256)


def test_steps_are_counted_to_the_next_one(prefills: RecentPrefills) -> None:
    """Who had a prompt in the last step has its part of one step, and not of none."""
    prefills.note(step_of(3), 10, 0.0, is_behind=False)
    assert prefills.steps_since(np.array([3]), 10).tolist() == [1]
    assert prefills.steps_since(np.array([3]), 14).tolist() == [5]


def test_an_entry_that_is_another_tenants_next_had_nothing(prefills: RecentPrefills) -> None:
    """No prompt, no row, no turn is left of the one before."""
    entry = np.array([3])
    prefills.note(step_of(3, Band.FLEX), 10, 5.0, is_behind=False)
    prefills.note_rows(entry, np.array([0.004]), 10)
    prefills.forget(3)
    assert prefills.of(entry, 10).tolist() == [0.0]
    assert prefills.per_decode(entry, 10).tolist() == [0.0]
    assert prefills.bands_of(entry).tolist() == [0]
    assert not len(prefills.lately(Band.FLEX, 11, 5.1))
