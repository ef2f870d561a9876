"""When steps in flight are thought to come back."""

from __future__ import annotations

import pytest

from scheduler.running.in_flight_times import InFlightTimes


def test_steps_end_one_after_the_other() -> None:
    """Each takes its price from when the one before is back; a late one is due at once."""
    times = InFlightTimes()
    assert times.left_s(1.0, stretch=1.0) == 0.0
    times.plan(0.1, 5.0)
    assert times.left_s(5.02, stretch=1.0) == pytest.approx(0.08)
    times.plan(0.2, 5.03)
    assert times.left_s(5.04, stretch=1.0) == pytest.approx(0.26)
    assert times.left_s(5.04, stretch=2.0) == pytest.approx(0.56)
    assert times.left_s(6.0, stretch=1.0) == 0.0
    times.report(0.15, 5.15)
    assert times.left_s(5.2, stretch=1.0) == pytest.approx(0.15)
    times.report(0.2, 5.35)
    times.plan(0.1, 9.0)
    assert times.left_s(9.0, stretch=1.0) == pytest.approx(0.1)


def test_errors_do_not_add_up() -> None:
    """After a thousand steps that were priced too high, with one in flight at each time."""
    times = InFlightTimes()
    times.plan(0.2, 0.0)
    for step in range(1, 1000):
        times.plan(0.2, step * 0.1 - 0.05)
        times.report(0.1, step * 0.1)
        assert times.left_s(step * 0.1, stretch=1.0) == pytest.approx(0.2)
    assert times.error == pytest.approx(0.5)


def test_a_lost_step_is_not_waited_for() -> None:
    """Nor are those behind it."""
    times = InFlightTimes()
    times.plan(0.1, 0.0)
    times.plan(0.1, 0.01)
    times.lose()
    assert times.left_s(0.02, stretch=1.0) == 0.0
    times.plan(0.1, 1.0)
    assert times.left_s(1.0, stretch=1.0) == pytest.approx(0.1)


def test_a_cold_first_step_is_soon_outweighed() -> None:
    """One that took ten times its price counts as any other, and is a tenth of what is known."""
    times = InFlightTimes()
    for number in range(11):
        times.plan(0.1, float(number))
        times.report(0.1 if number else 1.0, number + 0.5)
    assert 1.0 < times.error < 1.6
