"""When things are due."""

from __future__ import annotations

import math

import pytest

import fakes
from engine.kv.block_pool import BlockPool
from engine.kv.table import BlockTable
from scheduler.order.deadlines import first_due_s, given_up_s, next_due_s, paced_s, start_by_s
from scheduler.request import Request, Slo
from scheduler.sequence import Sequence


def request(slo: Slo, *, expires_s: float | None = None) -> Request:
    return fakes.make_request(slo=slo, arrival_s=10.0, expires_s=expires_s)


def begun(slo: Slo, first_token_s: float, num_output_tokens: int) -> Sequence:
    """Make a sequence that has drawn so many tokens."""
    sequence = Sequence(
        request(slo),
        BlockTable(BlockPool(4, 4), b""),
        ordinal=0,
        max_len=64,
        info=fakes.make_engine().info,
    )
    sequence.token_ids.extend([1] * num_output_tokens)
    sequence.first_token_s = first_token_s
    return sequence


@pytest.mark.parametrize(
    ("ttft_s", "expires_s", "given_up"),
    [(None, None, math.inf), (2.0, None, 12.0), (None, 11.0, 11.0), (2.0, 11.0, 11.0)],
)
def test_the_first_of_two_times_is_when_nobody_waits(
    ttft_s: float | None, expires_s: float | None, given_up: float
) -> None:
    """A request is given up when its promise or its caller's own time is over."""
    assert given_up_s(request(Slo(ttft_s=ttft_s), expires_s=expires_s)) == given_up


def test_nothing_is_due_without_a_promise() -> None:
    """The first token is due at infinity, or when the asker says that the rest are."""
    assert first_due_s(request(Slo())) == math.inf
    assert first_due_s(request(Slo()), unless_promised_s=60.0) == 70.0
    assert start_by_s(request(Slo()), 70.0, 1.0) == math.inf


def test_a_prefill_must_begin_twice_its_time_before() -> None:
    """Whoever is promised something begins early enough for a prefill that takes twice as long."""
    assert start_by_s(request(Slo(ttft_s=5.0)), 15.0, 1.5) == 12.0


@pytest.mark.parametrize("first_token_s", [10.5, 15.0])
def test_the_pace_counts_from_the_first_token(first_token_s: float) -> None:
    """A first token before its time buys none for the others, in the order as in the rows."""
    sequence = begun(Slo(ttft_s=2.0, tpot_s=0.5), first_token_s, 3)
    assert paced_s(sequence) == first_token_s + 1.5
    assert next_due_s(sequence, best_effort_ttft_s=60.0) == first_token_s + 1.5


def test_a_pace_without_a_first_promise_counts_from_the_token() -> None:
    """What nobody promised when is no reason to wait: the pace begins with the first token."""
    sequence = begun(Slo(tpot_s=0.5), 11.0, 2)
    assert paced_s(sequence) == 12.0
    assert paced_s(begun(Slo(max_gap_s=0.1), 11.0, 2)) == math.inf
