"""Deadlines and sizes of running rows, kept as arrays."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fakes
from engine.kv.block_pool import BlockPool
from engine.kv.table import BlockTable
from scheduler.request import Slo
from scheduler.rows import Rows
from scheduler.sequence import Sequence


def sequence(slot: int, slo: Slo = fakes.NOTHING_PROMISED, *, arrival_s: float = 0.0) -> Sequence:
    request = fakes.make_request(f"r{slot}", prompt=range(8), slo=slo, arrival_s=arrival_s)
    table = BlockTable(BlockPool(4, 4), b"")
    made = Sequence(request, table, ordinal=slot, max_len=64, info=fakes.make_engine().info)
    made.slot = slot
    return made


def drawn(rows: Rows, row: Sequence, times: list[float]) -> None:
    """Let a row draw its first token at the first of `times`, and another at each of the rest."""
    row.token_ids.append(1)
    rows.start(row, times[0])
    for now in times[1:]:
        row.token_ids.append(1)
        rows.advance(np.array([row.slot], dtype=np.intc), now)


def test_pace_counts_from_the_promised_first_token() -> None:
    """A first token that came early does not make the next one due earlier."""
    rows = Rows(4)
    row = sequence(1, Slo(ttft_s=2.0, tpot_s=0.1), arrival_s=10.0)
    drawn(rows, row, [10.5, 10.6, 10.7])
    assert rows.tightest_s == pytest.approx(12.3)


def test_pace_counts_from_a_late_first_token() -> None:
    """A first token that came late moves the ones after it."""
    rows = Rows(4)
    drawn(rows, sequence(1, Slo(ttft_s=2.0, tpot_s=0.1)), [5.0, 5.1])
    assert rows.tightest_s == pytest.approx(5.2)


def test_a_gap_starts_anew_with_each_token() -> None:
    """However much time was banked, the next token is due within the promised gap."""
    rows = Rows(4)
    drawn(rows, sequence(1, Slo(ttft_s=9.0, tpot_s=1.0, max_gap_s=0.06)), [1.0, 1.01])
    assert rows.tightest_s == pytest.approx(1.07)
    assert rows.shortest_gap_s == 0.06


def test_rows_without_a_promise_are_never_due() -> None:
    """Where nothing was promised, or not any more, the next token is due at infinity."""
    rows = Rows(4)
    drawn(rows, sequence(0), [1.0, 2.0])
    promised = sequence(1, Slo(tpot_s=0.5))
    drawn(rows, promised, [1.0])
    assert rows.tightest_s < math.inf
    rows.release(promised.slot)
    assert (rows.tightest_s, rows.shortest_gap_s) == (math.inf, math.inf)


@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.integers(0, 30)),
        min_size=1,
        max_size=6,
    )
)
def test_peak_is_what_a_simulation_of_the_rows_reaches(rows_of: list[tuple[int, int]]) -> None:
    """The predicted peak equals the most that rows hold if each grows to its length and leaves."""
    rows = Rows(8)
    for slot, (held, growth) in enumerate(rows_of[:-1]):
        row = sequence(slot)
        row.num_tokens = held
        rows.admit(row, 0, held + growth)
    peak = 0
    for step in range(31):
        alive = [(held, growth) for held, growth in rows_of if growth >= step]
        peak = max(peak, sum(held + step for held, _ in alive))
    assert rows.peak_tokens(*rows_of[-1]) == peak


def test_freed_slots_hold_nothing() -> None:
    """A row that went is not counted, and a token that lands for it after that is not either."""
    rows = Rows(4)
    row = sequence(2)
    rows.admit(row, 4, 20)
    assert (rows.own_tokens, rows.growth_tokens) == (4, 12)
    rows.release(2)
    rows.advance(np.array([2], dtype=np.intc), 1.0)
    assert (rows.own_tokens, rows.growth_tokens) == (0, 0)
