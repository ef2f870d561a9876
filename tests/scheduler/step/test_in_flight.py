"""What a step took of the machine's time, by when steps were reported."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

import fakes
from engine.contract import StepPlan, StepResult
from engine.step_cost import StepFeatures
from fakes import Driver
from scheduler.step.draft import Step
from scheduler.step.in_flight import InFlight


def took_s(in_flight: InFlight, step_id: int, now: float) -> float:
    """Report a step that the engine was ten milliseconds at; returns what counts for it."""
    _, took = in_flight.take(StepResult(step_id, array("i"), array("i"), 0.01), now)
    return took


def add(in_flight: InFlight, step_id: int) -> None:
    none = np.empty(0, dtype=np.intp)
    epochs = none.astype(np.intc)
    in_flight.add(Step(1, StepPlan(step_id), [], [], none, epochs, StepFeatures(), False))


def test_a_step_took_what_passed_since_the_last_one_but_for_rest() -> None:
    """Between steps all time counts, and none in which there was nothing to do."""
    in_flight = Driver(fakes.make_engine()).scheduler._in_flight
    add(in_flight, 0)
    assert took_s(in_flight, 0, 5.0) == 0.01
    add(in_flight, 1)
    in_flight.rest()
    assert took_s(in_flight, 1, 5.05) == pytest.approx(0.05), "one was under way"
    in_flight.rest()
    add(in_flight, 2)
    assert took_s(in_flight, 2, 15.0) == 0.01
