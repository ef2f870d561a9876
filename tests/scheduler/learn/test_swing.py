"""Ratios in a row on one side of 1, by which all is slower or faster."""

from __future__ import annotations

import pytest

from scheduler.learn.swing import NUM_ALIKE, Swing


def noted(ratios: list[float]) -> list[float | None]:
    swing = Swing()
    return [swing.note(ratio) for ratio in ratios]


@pytest.mark.parametrize("factor", [0.5, 0.9, 1.12, 2.0])
def test_sixteen_in_a_row_are_a_change(factor: float) -> None:
    """By a tenth or more, at the median, and no sooner."""
    assert noted([factor] * NUM_ALIKE) == [None] * (NUM_ALIKE - 1) + [factor]


@pytest.mark.parametrize("factor", [0.92, 1.08])
def test_what_is_off_by_less_than_a_tenth_is_none(factor: float) -> None:
    """Regression follows that."""
    assert noted([factor] * 40) == [None] * 40


def test_one_on_the_other_side_begins_anew() -> None:
    """Noise has both."""
    assert noted([1.5] * 15 + [0.99] + [1.5] * 15) == [None] * 31
