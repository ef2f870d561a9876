"""What a plan becomes on the device: the pieces that decode attention reads."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
import torch

from engine.contract import DecodeRows, NewSequence, SamplingParams, SequenceSlice, StepPlan
from engine.gpu.bucket import Bucket
from engine.gpu.layout import StepArrays, arrays_of, num_words
from engine.gpu.slot_table import SlotTable
from engine.kernels.decode_pieces import most_pieces

LENS = (300, 5, 40, 1)


def fill(widest_window: int) -> StepArrays[np.ndarray]:
    """Decode two rows, of 300 tokens and of 5, beside slices of 40 tokens and of one."""
    table = SlotTable(
        max_num_seqs=4,
        max_model_len=512,
        block_size=16,
        widest_window=widest_window,
        wave=8,
        device=torch.device("cpu"),
    )
    admitted = tuple(
        NewSequence(slot, str(slot), array("i", range(n)), n, 0, range(-(-n // 16)), params)
        for slot, n in enumerate(LENS)
        for params in [SamplingParams(max_tokens=9)]
    )
    decodes = DecodeRows()
    decodes.append(0, LENS[0] - 1)
    decodes.append(1, LENS[1] - 1)
    slices = (SequenceSlice(2, 0, 40, (), True), SequenceSlice(3, 0, 1, (), True))
    plan = StepPlan(0, admitted=admitted, slices=slices, decodes=decodes)
    bucket = Bucket(64, 6, 1, most_pieces(6, 8))
    arrays = arrays_of(np.full(num_words(bucket), 77, np.int32), bucket)
    table.apply(plan)
    table.fill(plan, arrays)
    return arrays


@pytest.mark.parametrize(("widest_window", "num_pieces"), [(512, 5), (100, 2)])
def test_rows_of_one_token_are_in_pieces(widest_window: int, num_pieces: int) -> None:
    """Long rows have more, by what a layer sees at most; a slice of one token decodes; no other."""
    arrays = fill(widest_window)
    rows = [0] * num_pieces + [1, 3]
    n = num_pieces
    assert arrays.piece_rows[: len(rows)].tolist() == rows
    assert set(arrays.piece_rows[len(rows) :].tolist()) == {-1}
    assert arrays.piece_starts.tolist() == [0, n, n + 1, n + 1, n + 2, n + 2, n + 2]
    assert arrays.tiles.tolist() == [[2, 0]]
