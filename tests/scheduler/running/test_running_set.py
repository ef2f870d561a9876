"""Who has a slot, and what is begun anew when another gets it."""

from __future__ import annotations

from functools import partial

from scheduler.facts import PreemptionCause
from scheduler.request import Band, Slo
from scheduler.running import PLACE_BITS, RunningSet
from scheduler.sequence import Sequence
from waiting import make_sequence


def decoding(running: RunningSet) -> Sequence:
    """Give a slot to a sequence, its first token in flight."""
    sequence = make_sequence(3)
    running.admit(sequence)
    sequence.num_computed, sequence.num_tokens = 3, 4
    running.start_decoding(sequence)
    return sequence


def test_who_is_sent_back_counts_it() -> None:
    """A preemption is counted and told of once, and an end is none."""
    running = RunningSet(2, compiled=False)
    victim, other = decoding(running), decoding(running)
    running.preempt(victim, PreemptionCause.BLOCKS)
    running.release(other)
    assert (victim.num_preemptions, other.num_preemptions) == (1, 0)
    _, preempted = running.take_changes()
    assert preempted == [victim.request_id]


def test_turns_begin_when_a_row_decodes() -> None:
    """A row does not go before others for how long its slot was idle, or another's."""
    running = RunningSet(1, compiled=False)
    for num_steps in (5, 90):
        running.num_steps = num_steps
        row = decoding(running)
        assert running.decode_rows.turns[row.slot] >> PLACE_BITS == num_steps
        running.release(row)


def test_what_a_promoted_row_holds_is_not_free_any_more() -> None:
    """What the batch band holds is as good as free for others; of a row that is moved up it is not.

    It is listed among those that run online, and its tenant has it in the band that it has now.
    """
    running = RunningSet(2, compiled=False)
    row = make_sequence(8, band=Band.BATCH)
    running.admit(row)
    running.kv_growth.admit(row.slot, 8, 4, band=Band.BATCH)
    row.num_computed, row.num_tokens = 8, 9
    running.start_decoding(row)
    assert running.kv_growth.tokens_below(Band.DUE) == (8.0, 4.0)
    running.promote(row, Band.DUE)
    assert running.kv_growth.tokens_below(Band.DUE) == (0.0, 0.0)
    assert running.kv_growth.tokens_below(Band.FLEX) == (8.0, 4.0)
    assert (list(running.online_decodes), list(running.batch_decodes)) == ([row], [])
    assert row.holder == (Band.DUE, row.request.member)
    running.release(row)
    assert not list(running.holdings.some_rows())


def test_a_row_takes_its_promise_along() -> None:
    """What was promised one that has gone, or was sent back, holds no step up."""
    running = RunningSet(2, compiled=False)
    for leave in (running.release, partial(running.preempt, cause=PreemptionCause.BLOCKS)):
        row = decoding(running)
        running.pace.start(row.slot, Slo(tpot_s=0.1), 1.0, 0.5)
        assert running.pace.tightest_s == 1.0
        leave(row)
        assert not running.pace.has_promises


def test_a_prompt_under_way_that_is_promoted_is_one_of_those_online() -> None:
    """What has begun in the batch band has its turn with online prompts once it is moved up."""
    running = RunningSet(2, compiled=False)
    row = make_sequence(8, band=Band.BATCH)
    running.admit(row)
    running.prefilling_rows.join(row)
    assert not running.prefilling_rows.online().size
    running.promote(row, Band.DUE)
    assert running.prefilling_rows.online().tolist() == [row.slot]
    assert running.prefilling_rows.bands[row.slot] == Band.DUE
