"""What is noted of one request, told by who moves it."""

from __future__ import annotations

from scheduler.facts import RequestFacts, WaitCause
from scheduler.watch.course import Course
from scheduler.watch.step_times import StepTimes
from scheduler.watch.wait_clock import CAUSES, Sums


def sums(step_s: float = 0.0, slots_s: float = 0.0) -> Sums:
    """Have had all who wait wait for so long."""
    by_cause = {WaitCause.STEP: step_s, WaitCause.SLOTS: slots_s}
    return tuple(by_cause.get(cause, 0.0) for cause in CAUSES)


def told(course: Course, now: float, at: Sums | None = None) -> RequestFacts:
    return course.tell(sums() if at is None else at, now, num_cached_tokens=0, num_output_tokens=1)


def waiting() -> Course:
    course = Course()
    course.queue(3, sums(), 0.0)
    return course


def running() -> Course:
    """Have a slot after a second, and the first token a second later."""
    course = waiting()
    course.admit(10, sums(slots_s=1.0), 1.0)
    course.note_chunk()
    course.begin_decoding(10)
    course.draw(2.0)
    return course


def test_who_had_a_slot_is_not_held() -> None:
    """One that was sent back and finds another computing its prompt waits as preempted."""
    course = running()
    course.send_back(3.0)
    course.hold(sums(slots_s=2.0), 3.0)
    assert not course.is_held
    facts = told(course, 5.0)
    assert facts.waits_s == {WaitCause.SLOTS: 1.0}
    assert facts.rests_s == {"preempted": 2.0}


def test_what_is_held_waits_for_nothing_else() -> None:
    """Whatever it goes by meanwhile, a second is counted once."""
    course = waiting()
    course.hold(sums(step_s=1.0), 1.0)
    course.break_off(sums(step_s=1.0, slots_s=2.0), sums())
    course.let_go(sums(slots_s=5.0), 4.0)
    course.admit(10, sums(slots_s=6.0), 5.0)
    assert told(course, 6.0).waits_s == {
        WaitCause.STEP: 1.0,
        WaitCause.HELD: 3.0,
        WaitCause.SLOTS: 1.0,
    }


def test_a_pause_counts_for_the_slot_in_which_it_was() -> None:
    """Steps that a row paused through before it was sent back are not taken from those after."""
    course = running()
    course.pause(2.0, 4)
    course.leave(21, 6)
    course.send_back(12.0)
    course.admit(40, None, 20.0)
    course.note_chunk()
    # Of twenty steps it was in one with its prompt, decoded in nine, and sat ten out.
    course.leave(60, 9)
    assert course._num_shared_steps == 10


def test_a_pause_ends_with_the_slot_or_the_request() -> None:
    """What comes after is not paused, and what never went on was."""
    course = running()
    course.pause(3.0, 1)
    course.send_back(5.0)
    course.admit(40, None, 6.0)
    course.pause(7.0, 1)
    assert told(course, 9.0).rests_s == {"preempted": 1.0, "paused": 4.0}


def test_what_was_before_the_first_token_is_no_rest_after_it() -> None:
    """One that was sent back while its prompt was computed waited for its first token."""
    course = waiting()
    course.admit(10, sums(), 0.0)
    for at_s, until_s in ((0.5, 1.0), (1.5, 3.0), (4.0, 4.5)):
        course.send_back(at_s)
        if until_s == 3.0:
            course.draw(2.0)
        course.admit(12, None, until_s)
    assert told(course, 6.0).rests_s == {"preempted": 1.5}


def test_the_longest_step_of_all_is_told() -> None:
    """Not the longest of the last stretch."""
    course, steps = waiting(), StepTimes()
    for step, (took_s, now) in enumerate(((5.0, 5.0), (2.0, 7.0))):
        steps.note(step, took_s, 10 + step, now)
        course.sit_through(steps, now + 0.5)
    facts = told(course, 8.0)
    assert (facts.longest_step_s, facts.longest_step_tokens) == (5.0, 10)
