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
    picked = rotation.pick(tenants, tenants, np.ones(3), one, none_must, np.full(3, 2.0))
    assert len(picked) == 2


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_who_is_not_held_any_more_begins_anew(is_forgotten: bool) -> None:
    """A debt ends once only others are held, or with the tenant whose entry it was."""
    rotation, one, ones = Rotation(), np.ones(3, dtype=np.int64), np.ones(3)
    all_must, none_must = np.ones(3, dtype=bool), np.zeros(3, dtype=bool)
    seven, eight, parts_s = np.full(3, 7), np.full(3, 8), np.full(3, 2.0)
    rotation.pick(seven, seven, ones, one, all_must, np.full(3, 0.1))
    if is_forgotten:
        rotation.forget(7)
    else:
        rotation.pick(eight, eight, ones, one, none_must, parts_s)
    assert len(rotation.pick(seven, seven, ones, one, none_must, parts_s)) == 2


def test_a_debt_is_of_one_step_at_most() -> None:
    """However long a tenant's rows had to run beyond its part, it is over once all have waited."""
    rotation, one, ones = Rotation(), np.ones(3, dtype=np.int64), np.ones(3)
    all_must, none_must = np.ones(3, dtype=bool), np.zeros(3, dtype=bool)
    tenants = np.full(3, 7)
    for _ in range(50):
        rotation.pick(tenants, tenants, ones, one, all_must, np.full(3, 0.1))
    parts_s = np.full(3, 1.0)
    picked = [len(rotation.pick(tenants, tenants, ones, one, none_must, parts_s)) for _ in range(4)]
    assert picked == [0, 0, 0, 1]


def test_keys_take_turns_within_a_step() -> None:
    """Where three rows of six run, they are not all of one key."""
    ran = turns([1, 1, 1, 2, 2, 2], 3.0, 60)
    assert set(ran[2:, :3].sum(axis=1).tolist()) == {1, 2}


def test_a_row_that_must_run_is_its_keys_turn() -> None:
    """What is left goes to the other key, and not to another row of the same one."""
    ran = turns([1, 1, 2], 2.0, 60, must=0)
    assert ran[2:].tolist() == [[1, 0, 1]] * 58


def test_what_must_run_is_paid_before_others_run() -> None:
    """Its key is last in turn, and no step has more rows for that."""
    rotation, tenants, keys = Rotation(), np.full(3, 7), np.array([1, 1, 2])
    turn, must = np.array([0, 1, 5]), np.array([False, False, True])
    for _ in range(5):
        picked = rotation.pick(tenants, keys, np.ones(3), turn, must, np.full(3, 1.0))
        assert picked.tolist() == [2]


def test_a_row_that_paused_for_long_is_not_its_keys_turn() -> None:
    """However long ago it ran, keys go by when the latest of their rows did."""
    rotation, newest, before = Rotation(), 9_000 << PLACE_BITS, 8_990 << PLACE_BITS
    turn, keys = np.array([before, before, newest, 7]), np.array([3, 4, 5, 5])
    none_must, parts_s = np.zeros(4, dtype=bool), np.full(4, 2.2)
    picked = rotation.pick(np.full(4, 7), keys, np.ones(4), turn, none_must, parts_s)
    assert sorted(picked.tolist()) == [0, 1]
