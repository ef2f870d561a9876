"""When the next tokens of running rows are due, kept as arrays."""

from __future__ import annotations

import math

import numpy as np
import pytest

import fakes
from engine.kv.block_pool import BlockPool
from engine.kv.table import BlockTable
from scheduler.order.deadlines import paced_s
from scheduler.request import Slo
from scheduler.running.pace import Pace
from scheduler.sequence import Sequence


def sequence(slot: int, slo: Slo = fakes.NOTHING_PROMISED, *, arrival_s: float = 0.0) -> Sequence:
    request = fakes.make_request(f"r{slot}", prompt=range(8), slo=slo, arrival_s=arrival_s)
    table = BlockTable(BlockPool(4, 4), b"")
    made = Sequence(request, table, ordinal=slot, max_len=64, info=fakes.make_engine().info)
    made.slot = slot
    return made


def drawn(pace: Pace, row: Sequence, times: list[float]) -> None:
    """Let a row draw its first token at the first of `times`, and another at each of the rest."""
    row.token_ids.append(1)
    row.first_token_s = times[0]
    pace.start(row.slot, row.request.slo, paced_s(row), times[0])
    for now in times[1:]:
        row.token_ids.append(1)
        pace.advance(np.array([row.slot], dtype=np.intc), now)


def test_pace_counts_from_an_early_first_token() -> None:
    """The mean over a request is what was promised, whatever its first token was."""
    pace = Pace(4)
    row = sequence(1, Slo(ttft_s=2.0, tpot_s=0.1), arrival_s=10.0)
    drawn(pace, row, [10.5, 10.6, 10.7])
    assert pace.tightest_s == pytest.approx(10.8)
    assert pace.shortest_tpot_s == 0.1


def test_pace_counts_from_a_late_first_token() -> None:
    """A first token that came late moves the ones after it."""
    pace = Pace(4)
    drawn(pace, sequence(1, Slo(ttft_s=2.0, tpot_s=0.1)), [5.0, 5.1])
    assert pace.tightest_s == pytest.approx(5.2)


def test_a_gap_starts_anew_with_each_token() -> None:
    """However much time was banked, the next token is due within the promised gap."""
    pace = Pace(4)
    drawn(pace, sequence(1, Slo(ttft_s=9.0, tpot_s=1.0, max_gap_s=0.06)), [1.0, 1.01])
    assert pace.tightest_s == pytest.approx(1.07)
    assert pace.shortest_gap_s == 0.06


def test_rows_without_a_promise_are_never_due() -> None:
    """Where nothing was promised, or not any more, the next token is due at infinity."""
    pace = Pace(4)
    drawn(pace, sequence(0), [1.0, 2.0])
    promised = sequence(1, Slo(tpot_s=0.5))
    drawn(pace, promised, [1.0])
    assert pace.tightest_s < math.inf
    pace.release(promised.slot)
    assert (pace.tightest_s, pace.shortest_gap_s) == (math.inf, math.inf)


def test_a_promise_goes_with_its_row() -> None:
    """Beside others that were promised something, no gap or pace counts that nobody has."""
    pace = Pace(4)
    drawn(pace, sequence(0, Slo(tpot_s=0.5)), [1.0])
    promised = sequence(1, Slo(tpot_s=0.1, max_gap_s=0.06))
    drawn(pace, promised, [1.0])
    pace.release(promised.slot)
    assert (pace.shortest_gap_s, pace.shortest_tpot_s) == (math.inf, 0.5)
    assert pace.tightest_s == 1.5


def test_a_first_token_is_followed_within_the_gap() -> None:
    """However late the second one may be by the pace."""
    pace = Pace(4)
    pace.start(1, Slo(tpot_s=1.0, max_gap_s=0.06), 9.0, 1.0)
    assert pace.tightest_s == pytest.approx(1.06)
    pace.start(2, Slo(tpot_s=0.01, max_gap_s=0.06), 1.01, 1.0)
    assert pace.tightest_s == pytest.approx(1.01)


def test_a_slot_that_is_free_promises_nothing() -> None:
    """Once the last row with a promise has gone, steps need not keep to any."""
    pace = Pace(4)
    pace.join(1, Slo(max_gap_s=0.06))
    assert pace.has_promises
    pace.start(1, Slo(max_gap_s=0.06), 9.0, 1.0)
    pace.release(1)
    assert not pace.has_promises


def test_rows_are_promised_if_each_is() -> None:
    """One without a promise among them gains by what others leave."""
    pace = Pace(4)
    pace.join(1, Slo(max_gap_s=0.06))
    pace.join(2, Slo(tpot_s=0.06))
    assert pace.are_promised(np.array([1, 2]))
    assert not pace.are_promised(np.array([1, 3]))
