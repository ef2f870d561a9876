"""When steps came back, and the longest since."""

from __future__ import annotations

import random

from scheduler.watch import step_times
from scheduler.watch.step_times import StepTimes


def test_the_longest_since_any_time_is_found() -> None:
    """Whatever steps there were, it is the longest of those that came back after that time."""
    draw = random.Random(1)
    times = StepTimes()
    steps = [(float(end), draw.choice((0.1, 0.2, 0.3, draw.random()))) for end in range(100)]
    for number, (end_s, took_s) in enumerate(steps):
        times.note(number, took_s, number, end_s)
        for since in range(-1, number):
            found = times.longest_since(float(since))
            assert found is not None
            assert found.took_s == max(took for end, took in steps[: number + 1] if end > since)
            assert steps[found.num_prefill_tokens] == (found.ended_s, found.took_s)
        assert times.longest_since(end_s) is None


def test_steps_that_get_ever_shorter_do_not_pile_up() -> None:
    """What is kept of the longest steps is bounded; the newest are found still."""
    times = StepTimes()
    for number in range(10_000):
        times.note(number, 1.0 / (1 + number), number, float(number))
    assert len(times._long) <= step_times._MAX_LONG
    found = times.longest_since(9_990.0)
    assert found is not None
    assert found.num_prefill_tokens == 9_991


def test_a_step_that_is_out_has_no_time_yet() -> None:
    """A step has a time once it is back; of one long ago a later time is known, no earlier one."""
    times = StepTimes()
    times.note(0, 1.0, 0, 5.0)
    assert (times.ended_s(0), times.ended_s(1)) == (5.0, None)
    for number in range(1, 3 * step_times._NUM_KEPT):
        times.note(number, 1.0, 0, 5.0 + number)
    ended_s = times.ended_s(7)
    assert ended_s is not None
    assert ended_s > 12.0
    last = 3 * step_times._NUM_KEPT - 1
    assert times.ended_s(last) == 5.0 + last


def test_of_many_that_get_shorter_the_last_are_kept() -> None:
    """What came back long ago is forgotten first."""
    times = StepTimes()
    for number in range(257):
        times.note(number, 300.0 - number, number, float(number))
    found = times.longest_since(254.5)
    assert found is not None
    assert found.took_s == 45.0
