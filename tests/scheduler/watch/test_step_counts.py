"""Quantities in buckets, and what steps were like."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler.watch import step_counts
from scheduler.watch.step_counts import Buckets, StepCounts


def test_counts_rise_from_bound_to_bound() -> None:
    """A value on a bound is within it, and what is above all bounds is in the last count alone."""
    buckets = Buckets((1.0, 2.0, 4.0))
    buckets.add(np.array([0.5, 1.0, 2.0]))
    buckets.add(np.array([3.0, 9.0]))
    read = buckets.read()
    assert read.counts == (2, 3, 4, 5)
    assert read.total == 15.5


def test_a_step_is_counted_in_each_way() -> None:
    """Its rows, tokens and seconds are each counted once, however often they are read."""
    counts = StepCounts()
    counts.note(1, 100, 2, 0.02)
    assert counts.read().rows.total == 3
    counts.note(0, 0, 2, 0.005)
    read = counts.read()
    assert (read.rows.total, read.tokens.total) == (5, 104)
    assert read.seconds.total == pytest.approx(0.025)
    assert (read.num_prefill_tokens, read.num_decode_tokens) == (100, 4)
    assert {read.rows.counts[-1], read.tokens.counts[-1], read.seconds.counts[-1]} == {2}


def test_steps_that_nobody_reads_do_not_pile_up() -> None:
    """What is noted is counted before long, read or not, and nothing of it is lost."""
    counts = StepCounts()
    for _ in range(2 * step_counts._MAX_NEW + 3):
        counts.note(0, 0, 1, 0.001)
    assert len(counts._new) < step_counts._MAX_NEW
    assert counts.read().seconds.counts[-1] == 2 * step_counts._MAX_NEW + 3
