"""When batch work is left out of steps: while online prompts wait, and for a while after."""

from __future__ import annotations

import pytest

import fakes
from engine.kv.block_pool import BlockPool
from engine.kv.table import BlockTable
from scheduler.request import Band, Slo
from scheduler.running import RunningSet
from scheduler.sequence import Sequence
from scheduler.step.giving_way import GivingWay

_INFO = fakes.make_engine().info


def _waiting(
    *, band: Band = Band.DEFAULT, ttft_s: float | None = 5.0, prefill_s: float = 0.0
) -> Sequence:
    request = fakes.make_request(band=band, slo=Slo(ttft_s))
    table = BlockTable(BlockPool(32, 4), b"")
    sequence = Sequence(request, table, ordinal=0, max_len=64, info=_INFO)
    sequence.prefill_s = prefill_s
    return sequence


def test_it_gives_way_from_a_twentieth_of_a_promise_on() -> None:
    """And for two seconds after nobody waits any more."""
    giving_way = GivingWay(2.0, RunningSet(4))
    assert not giving_way.is_due(_waiting(), 0.24)
    assert giving_way.is_due(_waiting(), 0.25)
    assert giving_way.is_due(_waiting(), 1.0)
    assert giving_way.is_due(None, 2.99)
    assert not giving_way.is_due(None, 3.0)


@pytest.mark.parametrize(
    "head",
    [
        None,
        _waiting(ttft_s=101.0),
        _waiting(ttft_s=None, prefill_s=4.6),
        _waiting(band=Band.DUE),
        _waiting(band=Band.BATCH),
    ],
)
def test_it_goes_on_where_nobody_has_waited_for_long(head: Sequence | None) -> None:
    """What a prompt takes alone is no wait, and batch work that was forced up may wait."""
    assert not GivingWay(2.0, RunningSet(4)).is_due(head, 5.0)


def test_prompts_under_way_count_as_those_that_wait() -> None:
    """A prompt that is computed in small chunks beside many rows is waited for as well."""
    running = RunningSet(4)
    running.admit(_waiting())
    assert GivingWay(2.0, running).is_due(None, 0.5)
    assert not GivingWay(0.0, running).is_due(None, 0.5)
