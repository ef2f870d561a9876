"""How much of a step tenants have: equal for their weights, within what it may cost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.step.water_level import NO_LEVEL, fair_level, held_to, least_work_s, level_for

_SETTINGS = settings(max_examples=200, deadline=None, derandomize=True, database=None)
_TENANTS = st.lists(
    st.tuples(st.floats(0.01, 50.0), st.sampled_from([0.5, 1.0, 3.0, 8.0])), min_size=2, max_size=12
)


def throughput(work_s: float, fixed_s: float) -> float:
    return work_s / (fixed_s + work_s)


def parts(tenants: list[tuple[float, float]], fixed_s: float, loss: float) -> np.ndarray:
    asked_s, weights = (np.array(column) for column in zip(*tenants, strict=True))
    level = fair_level(asked_s, weights, asked_s, fixed_s, loss)
    return np.asarray(held_to(asked_s, weights, level))


@_SETTINGS
@given(tenants=_TENANTS, fixed_s=st.floats(0.01, 100.0), loss=st.floats(0.01, 0.9))
def test_no_more_is_lost_than_may_be(
    tenants: list[tuple[float, float]], fixed_s: float, loss: float
) -> None:
    """The machine works as much as all rows would have it, but for the loss at most."""
    work_s = sum(asked for asked, _ in tenants)
    left_s = float(parts(tenants, fixed_s, loss).sum())
    assert throughput(left_s, fixed_s) >= (1 - loss) * throughput(work_s, fixed_s) - 1e-9
    # Steps are shorter by a larger part than is lost.
    lost = 1 - throughput(left_s, fixed_s) / throughput(work_s, fixed_s)
    assert 1 - (fixed_s + left_s) / (fixed_s + work_s) >= lost - 1e-9


@_SETTINGS
@given(tenants=_TENANTS, fixed_s=st.floats(0.01, 100.0), loss=st.floats(0.0, 0.9))
def test_only_those_above_a_level_are_held_to_it(
    tenants: list[tuple[float, float]], fixed_s: float, loss: float
) -> None:
    """Everyone has what it asks for or as much for its weight as anyone, and the least has all."""
    part_s = parts(tenants, fixed_s, loss)
    for_weight = part_s / [weight for _, weight in tenants]
    for (asked_s, _), mine, level in zip(tenants, part_s, for_weight, strict=True):
        assert mine == pytest.approx(asked_s) or level == pytest.approx(for_weight.max())
    least = int(np.argmin([asked_s / weight for asked_s, weight in tenants]))
    assert part_s[least] == pytest.approx(tenants[least][0])


def test_two_tenants_are_held_level_where_that_is_cheap() -> None:
    """48 rows beside 96, and 96 beside 48 of three times the weight, as on the demo's machine."""
    fixed_s, row_s = 0.55, 0.019
    assert parts([(48 * row_s, 1.0), (96 * row_s, 1.0)], fixed_s, 0.2) == pytest.approx(
        [48 * row_s, 48 * row_s]
    )
    assert parts([(96 * row_s, 1.0), (48 * row_s, 3.0)], fixed_s, 0.2) == pytest.approx(
        [16 * row_s, 48 * row_s]
    )


@pytest.mark.parametrize(("loss", "slower"), [(0.2, 3.5), (0.3, 2.5)])
def test_a_light_row_is_not_slowed_for_much(loss: float, slower: float) -> None:
    """Beside 150 rows on the demo's machine a token takes so many times as long as alone."""
    fixed_s, row_s = 0.55, 0.019
    step_s = fixed_s + parts([(row_s, 1.0), (150 * row_s, 1.0)], fixed_s, loss).sum()
    assert step_s <= slower * (fixed_s + row_s)


def test_what_waits_raises_the_level() -> None:
    """Who waits for a slot is not served better by slots that are given back later."""
    asked_s, weights = np.array([1.0, 60.0]), np.ones(2)
    alone = fair_level(asked_s, weights, asked_s, 1.0, 0.9)
    queued = fair_level(asked_s, weights, np.array([20.0, 60.0]), 1.0, 0.9)
    assert alone < 10.0
    assert queued == pytest.approx(20.0)
    assert fair_level(asked_s, weights, np.array([90.0, 60.0]), 1.0, 0.9) == NO_LEVEL


def test_the_loss_goes_by_whom_it_is_for() -> None:
    """One light tenant of fifty costs a twenty-fifth of what one of two does."""
    fixed_s = 1.0
    many = [(0.1, 1.0), *[(1.0, 1.0)] * 49]
    work_s = 49.1
    lost = 1 - throughput(parts(many, fixed_s, 0.2).sum(), fixed_s) / throughput(work_s, fixed_s)
    assert lost == pytest.approx(0.2 * 2 / 50, rel=0.01)


@_SETTINGS
@given(tenants=_TENANTS, part=st.floats(0.01, 1.2))
def test_a_level_gives_out_an_amount(tenants: list[tuple[float, float]], part: float) -> None:
    """All have the amount together, or all that they ask for."""
    asked_s, weights = (np.array(column) for column in zip(*tenants, strict=True))
    amount_s = part * float(asked_s.sum())
    had_s = held_to(asked_s, weights, level_for(asked_s, weights, amount_s))
    assert had_s.sum() == pytest.approx(min(amount_s, asked_s.sum()))


def test_least_work_keeps_the_throughput() -> None:
    """The work that must be left is what gives just the throughput that must be."""
    left_s = least_work_s(30.0, 5.0, 0.2)
    assert throughput(left_s, 5.0) == pytest.approx(0.8 * throughput(30.0, 5.0))


def test_rounding_holds_nobody() -> None:
    """What tenants ask for adds up to as much in any order, where all of it must be left."""
    asked_s, weights = np.array([2.2, 2.1, 0.3]), np.ones(3)
    assert fair_level(asked_s, weights, asked_s, 100.0, 0.2) == NO_LEVEL
    asked_s, weights = np.array([2.2, 2.6, 0.4, 1.4, 0.4]), np.array([1.0, 1.0, 1.0, 3.0, 3.0])
    almost_all_s = float(np.nextafter(asked_s.sum(), 0.0))
    assert level_for(asked_s, weights, almost_all_s) == NO_LEVEL


def test_no_more_is_left_than_is_needed_for_those_it_is_lost_for() -> None:
    """A level at which one more tenant runs all it has counts that one's weight, and is enough."""
    asked_s, weights = np.array([1.2, 1.9, 0.6, 2.1, 1.2]), np.array([3.0, 1.0, 3.0, 3.0, 3.0])
    assert fair_level(asked_s, weights, asked_s, 5.0, 0.2) == pytest.approx(0.4)
