"""Whose turn it is where not all rows run."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.running import PLACE_BITS, Rotation

_SETTINGS = settings(max_examples=60, deadline=None, derandomize=True, database=None)


def turns(
    keys: list[int],
    part_s: float,
    num_steps: int,
    *,
    costs_s: list[float] | None = None,
    must: int | None = None,
) -> np.ndarray:
    """Let one tenant's rows, of these keys, run in turn; returns [steps, rows]."""
    rotation, num_rows = Rotation(), len(keys)
    last = np.zeros(num_rows, dtype=np.int64)
    ran = np.zeros((num_steps, num_rows), dtype=int)
    for step in range(1, num_steps + 1):
        picked = rotation.pick(
            np.full(num_rows, 5),
            np.array(keys),
            np.array(costs_s or [1.0] * num_rows),
            last,
            np.arange(num_rows) == (-1 if must is None else must),
            np.full(num_rows, part_s),
        )
        last[picked] = (step << PLACE_BITS) + np.arange(len(picked))
        ran[step - 1, picked] = 1
    return ran


@_SETTINGS
@given(num_rows=st.integers(2, 30), part=st.floats(1.0, 29.0))
def test_rows_of_a_key_run_alike_and_evenly(num_rows: int, part: float) -> None:
    """Each runs as often as any other, and waits for no longer than one round takes."""
    part = min(part, num_rows)
    ran = turns([1] * num_rows, part, 300)
    assert ran.sum() == pytest.approx(300 * part, abs=2 + part)
    assert np.ptp(ran.sum(axis=0)) <= 2
    gaps = [np.diff(np.flatnonzero(row)).max(initial=0) for row in ran.T]
    assert max(gaps) <= num_rows / part + 2


def test_keys_take_turns_however_many_rows_they_have() -> None:
    """A key's one row runs as often as the twenty of another together, where one row may run."""
    ran = turns([1] + [2] * 20, 1.0, 200).sum(axis=0)
    assert ran[0] == pytest.approx(100, abs=2)
    assert np.ptp(ran[1:]) <= 1


def test_a_key_has_what_it_can_use() -> None:
    """Where a key has fewer rows than its part would let run, others have the rest."""
    ran = turns([1, 2, 2, 2, 2, 2], 3.0, 200).sum(axis=0)
    assert ran[0] == pytest.approx(200, abs=3)
    assert ran[1:] == pytest.approx([80] * 5, abs=3)


def test_rows_that_cost_more_take_more_of_the_part() -> None:
    """What runs costs the part in the long run, be its rows light or heavy."""
    costs_s = [3.0, 1.0, 1.0, 1.0]
    ran = turns([1] * 4, 2.0, 300, costs_s=costs_s)
    assert (ran * costs_s).sum() == pytest.approx(600, abs=6)


def test_a_row_that_must_run_does_at_its_tenants_cost() -> None:
    """It runs in each step, and the other rows of its tenant have what is left."""
    ran = turns([1] * 5, 2.0, 200, must=3).sum(axis=0)
    assert ran[3] == 200
    assert ran.sum() == pytest.approx(400, abs=4)


def test_tenants_that_are_held_at_once_do_not_run_at_once() -> None:
    """Of forty tenants with half a row's part each, about twenty rows run in each step."""
    rotation, tenants = Rotation(), np.arange(40)
    turns, none_must = np.zeros(40, dtype=np.int64), np.zeros(40, dtype=bool)
    counts = []
    for _ in range(40):
        picked = rotation.pick(tenants, tenants, np.ones(40), turns, none_must, np.full(40, 0.5))
        counts.append(len(picked))
    assert 15 <= min(counts) <= max(counts) <= 25


def test_what_was_saved_up_is_forgotten_with_the_hold() -> None:
    """A debt is not kept over a time in which all rows ran."""
    rotation = Rotation()
    one = np.ones(3, dtype=np.int64)
    all_must, none_must = np.ones(3, dtype=bool), np.zeros(3, dtype=bool)
    tenants = np.full(3, 7)
    for _ in range(9):
        rotation.pick(tenants, tenants, np.ones(3), one, all_must, np.full(3, 0.5))
    assert not rotation.pick(tenants, tenants, np.ones(3), one, none_must, np.full(3, 2.0)).any()
    rotation.clear()
    assert rotation.pick(tenants, tenants, np.ones(3), one, none_must, np.full(3, 2.0)).size


def test_what_rows_cannot_use_is_not_saved_up() -> None:
    """A tenant whose four rows have had parts of six has a row's part left, and not more."""
    rotation, tenants = Rotation(), np.full(4, 7)
    turns, none_must = np.zeros(4, dtype=np.int64), np.zeros(4, dtype=bool)

    def num_picked(part_s: float) -> int:
        parts_s = np.full(4, part_s)
        return len(rotation.pick(tenants, tenants, np.ones(4), turns, none_must, parts_s))

    assert [num_picked(6.0) for _ in range(3)] == [4, 4, 4]
    assert [num_picked(1.0) for _ in range(3)] == [2, 1, 1]
