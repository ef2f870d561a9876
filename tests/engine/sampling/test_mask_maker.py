"""The thread that makes masks."""

from __future__ import annotations

from array import array
from threading import Event, Timer

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.contract import NewSequence, SamplingParams
from engine.sampling.constraints import ConstraintTable, StepMasks
from engine.sampling.mask_maker import MaskMaker
from fake_constraint import Spelled


class Exhausted(Spelled):
    """A constraint that ends whoever asks it, as want of memory does."""

    def fill_mask(self, words: NDArray[np.int32], address: int) -> None:
        raise KeyboardInterrupt

    def copy(self) -> Exhausted:
        return Exhausted(self.spelled, end=self.end)


class Gated(Spelled):
    """A constraint that says what it allows once it may."""

    gate = Event()

    def fill_mask(self, words: NDArray[np.int32], address: int) -> None:
        self.gate.wait()
        super().fill_mask(words, address)

    def copy(self) -> Gated:
        return Gated(self.spelled, end=self.end)


def step_of(constraint: Spelled) -> StepMasks:
    table = ConstraintTable(vocab_size=70, num_slots=3)
    params = SamplingParams(max_tokens=9, constraint=constraint)
    table.admit(NewSequence(2, "r", array("i", [5]), 1, 0, (), params))
    step = table.step(np.array([0, 2], np.int32))
    assert step is not None
    return step


def test_what_ends_a_step_ends_no_other() -> None:
    """What making masks raises is raised where they are taken, and the next step's are made."""
    maker = MaskMaker()
    bad, good = step_of(Exhausted([], end=1)), step_of(Spelled([[33]], end=1))
    for step in (bad, good):
        maker.begin(step)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            bad.take()
    masks = good.take()
    assert good.take() is masks
    assert masks.rows.tolist() == [1]
    assert masks.costs is not None
    assert masks.costs.slots.tolist() == [2]
    maker.close()
    maker.close()


def test_a_step_says_for_how_long_it_waited() -> None:
    """What was made before it was asked for kept nobody waiting."""
    maker = MaskMaker()
    Gated.gate.clear()
    step = step_of(Gated([[33]], end=1))
    maker.begin(step)
    Timer(0.05, Gated.gate.set).start()
    costs = step.costs()
    assert costs is not None
    assert 0.01 < costs.waited_s < 10
    assert costs.all_s < costs.waited_s

    ready = step_of(Spelled([[33]], end=1))
    maker.begin(ready)
    maker.close()
    costs = ready.costs()
    assert costs is not None
    assert costs.waited_s == 0
