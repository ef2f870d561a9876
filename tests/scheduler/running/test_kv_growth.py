"""What running rows hold of the KV cache and will, kept as arrays."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scheduler.request import Band
from scheduler.running.kv_growth import KvGrowth


@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.integers(0, 30)),
        min_size=1,
        max_size=6,
    )
)
def test_peak_is_what_a_simulation_of_the_rows_reaches(rows_of: list[tuple[int, int]]) -> None:
    """The predicted peak equals the most that rows hold if each grows to its length and leaves."""
    rows = KvGrowth(8)
    for slot, (held, growth) in enumerate(rows_of[:-1]):
        rows.admit(slot, held, growth)
    peak = 0
    for step in range(31):
        alive = [(held, growth) for held, growth in rows_of if growth >= step]
        peak = max(peak, sum(held + step for held, _ in alive))
    assert rows.peak_tokens(*rows_of[-1]) == peak


def test_a_row_beyond_its_expected_length_holds_all_that_it_has() -> None:
    """It is about to leave, and lowers neither the peak nor what others are to grow by."""
    rows = KvGrowth(4)
    rows.admit(0, 50, 2)
    rows.admit(1, 10, 9)
    for _ in range(5):
        rows.advance(np.array([0]))
    assert rows.growth_tokens == 9.0
    assert rows.tokens_of(0) == (65.0, 9.0)
    assert rows.peak_tokens(3.0, 1.0) == 55 + 10 + 3


def test_a_slot_that_was_lent_to_batch_work_counts_for_its_next_row() -> None:
    """What a row of a lower band leaves behind says nothing of who has its slot next."""
    rows = KvGrowth(2)
    rows.admit(0, 8, 4, band=Band.BATCH)
    assert rows.peak_tokens(1.0, 1.0, Band.DEFAULT) == 2.0
    rows.release(0)
    rows.admit(0, 8, 4, band=Band.DEFAULT)
    assert rows.tokens_below(Band.DEFAULT) == (0.0, 0.0)
    assert rows.peak_tokens(1.0, 4.0, Band.DEFAULT) == 17.0


def test_freed_slots_hold_nothing() -> None:
    """A row that went is not counted, and a token that lands for it after that is not either."""
    rows = KvGrowth(4)
    rows.admit(2, 4, 12)
    assert (rows.own_tokens, rows.growth_tokens) == (4, 12)
    rows.release(2)
    rows.advance(np.array([2], dtype=np.intc))
    assert (rows.own_tokens, rows.growth_tokens) == (0, 0)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 40), st.integers(-3, 30)), max_size=6))
def test_what_a_tenant_holds_is_the_sum_of_its_rows(rows_of: list[tuple[int, int, int]]) -> None:
    """By place, rows add up what they hold, and what they are to grow by where that is above 0."""
    rows = KvGrowth(8)
    for slot, (place, held, growth) in enumerate(rows_of):
        rows.admit(slot, held, growth, place=place)
    rows.admit(6, 5, 5, band=Band.BATCH, place=2)
    rows.promote(6, Band.DUE, 1)
    if rows_of:
        rows.release(0)
    left = [*rows_of[1:], (1, 5, 5)]
    for place in range(3):
        own = [(held, max(growth, 0)) for of, held, growth in left if of == place]
        assert rows.tokens_of(place) == (sum(h for h, _ in own), sum(g for _, g in own))
    assert rows.tokens_of_all([0, 2]) == sum(rows.tokens_of(0)) + sum(rows.tokens_of(2))
    rows.advance(np.array([6]))
    assert rows.tokens_of_all([0, 1, 2]) == rows.own_tokens + rows.growth_tokens
