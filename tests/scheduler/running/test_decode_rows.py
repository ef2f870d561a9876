"""The counts and newest tokens of rows that decode, kept as columns."""

from __future__ import annotations

from array import array

import numpy as np

from scheduler.request import Band
from scheduler.running.decode_rows import DecodingRows
from scheduler.sequence import Sequence
from waiting import make_sequence


def joined(rows: DecodingRows, slot: int, *, band: Band = Band.DEFAULT) -> Sequence:
    """Let a sequence of three prompt tokens decode, its first token in flight."""
    sequence = make_sequence(3, band=band, max_tokens=200)
    sequence.slot = slot
    sequence.num_computed = 3
    sequence.num_tokens = 4
    rows.join(sequence)
    return sequence


def land(rows: DecodingRows, slot: int, token_id: int) -> bool:
    """Plan one more token and take the one that was in flight; tells whether it was the last."""
    slots = np.array([slot])
    rows.num_tokens[slots] += 1
    (reached,) = rows.land(slots, np.array([token_id], dtype=np.intc)).tolist()
    return bool(reached)


def test_a_sequence_reads_its_counts_where_they_are() -> None:
    """While it decodes, what a sequence says of itself is what the columns hold."""
    rows = DecodingRows(4)
    sequence = joined(rows, 2)
    assert (sequence.num_tokens, sequence.num_computed, sequence.num_known) == (4, 3, 3)
    land(rows, 2, 7)
    assert (sequence.num_tokens, sequence.num_computed, sequence.num_known) == (5, 4, 4)
    assert (sequence.num_output_tokens, sequence.num_in_flight) == (1, 1)


def test_no_token_is_lost_however_many_land_before_one_is_asked_for() -> None:
    """Tokens come out in their order, more of them than a row's columns hold at a time."""
    rows = DecodingRows(2)
    sequence = joined(rows, 1)
    for token_id in range(150):
        land(rows, 1, token_id)
        if token_id == 40:
            assert sequence.token_ids[3:] == array("i", range(41))
    rows.leave(sequence)
    assert sequence.token_ids[3:] == array("i", range(150))
    assert (sequence.num_tokens, sequence.num_known) == (154, 153)


def test_a_row_reaches_the_limit_that_it_was_given_last() -> None:
    """A grant lets a row go on, and its end is where the grant ends once that is final."""
    rows = DecodingRows(2)
    sequence = joined(rows, 0)
    assert not land(rows, 0, 1)
    sequence.pause_at = 5
    sequence.end_at_grant()
    assert sequence.is_paused
    assert not len(rows.unpaused(rows.online()))
    assert land(rows, 0, 2)


def test_a_slot_that_changes_hands_has_another_epoch() -> None:
    """Who remembers a row's slot can tell that it is another's now, of the same size or not."""
    rows = DecodingRows(2)
    before = rows.epochs.item(1)
    sequence = joined(rows, 1)
    assert rows.epochs.item(1) == before
    rows.leave(sequence)
    joined(rows, 1)
    assert rows.epochs.item(1) != before


def test_batch_rows_are_apart_and_oldest_first() -> None:
    """Rows of the batch band are listed by age, whatever their slots, and never with the others."""
    rows = DecodingRows(4)
    older, online, younger = (
        joined(rows, slot, band=band)
        for slot, band in ((3, Band.BATCH), (1, Band.DEFAULT), (0, Band.BATCH))
    )
    assert rows.sequences(rows.batch()) == [older, younger]
    assert rows.sequences(rows.online()) == [online]
