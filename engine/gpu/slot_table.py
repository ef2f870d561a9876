"""What the engine keeps of every slot: tokens and blocks on the device, their numbers here.

The host knows how many tokens a slot has without knowing the newest, which may not have been drawn
yet: so a step can be launched while the one before it runs. What a plan admits is written when the
step is launched, in the stream that computes, after the step before.

A row beyond the last slot belongs to nobody. What pads a step reads and writes there. So does the
last column of the block table.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from engine.contract import NewSequence, StepPlan
from engine.gpu.bucket import Bucket
from engine.gpu.layout import StepArrays
from engine.gpu.staging import upload
from engine.kernels.decode_pieces import count_pieces, most_pieces
from engine.kernels.operations import PREFILL_QUERIES


class SlotTable:
    """Keep token ids and block tables by slot.

    `tokens`: int32, [num_slots + 1, max_model_len + 1]. `blocks`: int32, [num_slots + 1,
    max_num_blocks + 1]. `widest_window`: the most tokens that a layer sees. `wave`: how many pieces
    of contexts the device reads at once.
    """

    def __init__(
        self,
        *,
        max_num_seqs: int,
        max_model_len: int,
        block_size: int,
        widest_window: int,
        wave: int,
        device: torch.device,
    ) -> None:
        self._block_size = block_size
        self._widest_window = widest_window
        self.wave = wave
        self._device = device
        self.nobody = max_num_seqs
        max_num_blocks = -(-max_model_len // block_size)
        self._no_column = max_num_blocks
        # One token more than a context: the last one drawn is stored but never computed.
        sizes = (max_num_seqs + 1, max_model_len + 1), (max_num_seqs + 1, max_num_blocks + 1)
        self.tokens = torch.zeros(sizes[0], dtype=torch.int32, device=device)
        self.blocks = torch.zeros(sizes[1], dtype=torch.int32, device=device)
        self.num_tokens = np.zeros(max_num_seqs, np.int64)
        self._num_blocks = np.zeros(max_num_seqs, np.int64)

    def apply(self, plan: StepPlan) -> None:
        """Change the table in the contract's order: released, admitted, then slices' blocks."""
        if plan.released:
            self.num_tokens[list(plan.released)] = 0
            self._num_blocks[list(plan.released)] = 0
        for sequence in plan.admitted:
            self._admit(sequence)
        rows: list[NDArray[np.int64]] = []
        values: list[Sequence[int]] = []
        for slot, block_ids in (
            *((sequence.slot, sequence.block_ids) for sequence in plan.admitted),
            *((piece.slot, piece.new_block_ids) for piece in plan.slices),
        ):
            n = len(block_ids)
            if n:
                begin = int(self._num_blocks[slot])
                rows.append(slot * self.blocks.shape[1] + np.arange(begin, begin + n))
                values.append(block_ids)
                self._num_blocks[slot] = begin + n
        if rows:
            index = upload(np.concatenate(rows), self._device)
            found = np.concatenate([np.array(each, np.int32) for each in values])
            self.blocks.view(-1).index_copy_(0, index, upload(found, self._device))

    def fill(self, plan: StepPlan, arrays: StepArrays[NDArray[np.int32]]) -> NDArray[np.int32]:
        """Write a plan that was applied as the arrays of a bucket; return the slots that draw."""
        pieces, decodes = plan.slices, plan.decodes
        num_decodes = len(decodes)
        slots = np.array(decodes.slots, np.int32)
        if pieces:
            slots = np.concatenate((slots, np.array([piece.slot for piece in pieces], np.int32)))
        lens = np.array([piece.n_tokens for piece in pieces], np.int32)
        starts = np.array([piece.start for piece in pieces], np.int32)
        decode_positions = np.array(decodes.positions, np.int32)
        self._check(plan, slots, decode_positions, starts + lens)
        num_rows, num_tokens = len(slots), num_decodes + int(lens.sum())
        _fill(arrays.slots, slots, self.nobody)
        contexts = np.concatenate((decode_positions + 1, starts + lens))
        _fill(arrays.context_lens, contexts, 0)
        query_lens = np.concatenate((np.ones(num_decodes, np.int32), lens))
        arrays.query_starts[0] = 0
        ends = np.cumsum(query_lens, dtype=np.int32)
        _fill(arrays.query_starts[1:], ends, num_tokens)
        _fill(arrays.token_rows, np.repeat(np.arange(num_rows, dtype=np.int32), query_lens), -1)
        before = np.repeat(ends[num_decodes:] - lens, lens)
        own = np.arange(num_decodes, num_tokens, dtype=np.int32) - before
        own += np.repeat(starts, lens)
        _fill(arrays.positions, np.concatenate((decode_positions, own)), 0)
        self._fill_pieces(arrays, np.where(query_lens == 1, contexts, 0))
        self._fill_tiles(arrays, lens, num_decodes)
        self._fill_blocks(plan, arrays)
        return self._fill_draws(plan, arrays, slots, contexts, ends)

    def bucket_of(self, plan: StepPlan) -> Bucket:
        """Measure a plan."""
        tiles = sum(-(-p.n_tokens // PREFILL_QUERIES) for p in plan.slices if p.n_tokens > 1)
        num_rows = len(plan.decodes) + len(plan.slices)
        return Bucket(plan.num_tokens, num_rows, tiles, most_pieces(num_rows, self.wave))

    def clear(self) -> None:
        """Forget every slot."""
        self.num_tokens[:] = 0
        self._num_blocks[:] = 0

    def _admit(self, sequence: NewSequence) -> None:
        slot, n = sequence.slot, len(sequence.token_ids)
        assert n > sequence.num_computed >= 0, "an admitted sequence has something to compute"
        tokens = upload(np.array(sequence.token_ids, np.int32), self._device)
        self.tokens[slot, :n].copy_(tokens)
        self.num_tokens[slot] = n
        self._num_blocks[slot] = 0

    def _check(
        self,
        plan: StepPlan,
        slots: NDArray[np.int32],
        decode_positions: NDArray[np.int32],
        ends: NDArray[np.int32],
    ) -> None:
        """A plan that contradicts the table is a bug of ours: it fails before it is computed."""
        num_decodes = len(decode_positions)
        newest = self.num_tokens[slots]
        assert (decode_positions == newest[:num_decodes] - 1).all(), "decode of an old token"
        assert (ends <= newest[num_decodes:]).all(), "slice beyond the tokens of its sequence"
        samples = np.array([piece.sample for piece in plan.slices], np.bool_)
        assert ((ends == newest[num_decodes:]) | ~samples).all(), "a slice samples at its end"
        assert not any(len(piece.drafts) for piece in plan.slices), "drafts are not supported"

    def _fill_pieces(
        self, arrays: StepArrays[NDArray[np.int32]], num_keys: NDArray[np.int32]
    ) -> None:
        seen = np.minimum(num_keys, self._widest_window)
        counts = count_pieces(seen, len(arrays.piece_rows), self.wave)
        ends = np.cumsum(counts, dtype=np.int32)
        arrays.piece_starts[0] = 0
        _fill(arrays.piece_starts[1:], ends, ends[-1] if len(ends) else 0)
        _fill(arrays.piece_rows, np.repeat(np.arange(len(counts), dtype=np.int32), counts), -1)

    def _fill_tiles(
        self, arrays: StepArrays[NDArray[np.int32]], lens: NDArray[np.int32], num_decodes: int
    ) -> None:
        tiles = arrays.tiles
        tiles[:] = -1
        begin = 0
        for row, n in enumerate(lens.tolist(), num_decodes):
            if n > 1:
                offsets = np.arange(0, n, PREFILL_QUERIES, dtype=np.int32)
                tiles[begin : begin + len(offsets), 0] = row
                tiles[begin : begin + len(offsets), 1] = offsets
                begin += len(offsets)

    def _fill_blocks(self, plan: StepPlan, arrays: StepArrays[NDArray[np.int32]]) -> None:
        """Write the blocks that decodes bring, and count them."""
        new_blocks = np.array(plan.decodes.new_block_ids, np.int32)
        _fill(arrays.new_blocks, np.maximum(new_blocks, 0), 0)
        arrays.block_columns[:] = self._no_column
        growing = np.flatnonzero(new_blocks >= 0)
        if len(growing):
            slots = np.array(plan.decodes.slots, np.int32)[growing]
            arrays.block_columns[growing] = self._num_blocks[slots]
            self._num_blocks[slots] += 1

    def _fill_draws(
        self,
        plan: StepPlan,
        arrays: StepArrays[NDArray[np.int32]],
        slots: NDArray[np.int32],
        contexts: NDArray[np.int32],
        ends: NDArray[np.int32],
    ) -> NDArray[np.int32]:
        needed = -(-contexts // self._block_size)
        assert (needed <= self._num_blocks[slots]).all(), "tokens without a block"
        samples = [piece.sample for piece in plan.slices]
        draws = np.array([True] * len(plan.decodes) + samples, np.bool_)
        drawn_slots = slots[draws]
        _fill(arrays.draw_slots, drawn_slots, self.nobody)
        _fill(arrays.draw_positions, contexts[draws], 0)
        _fill(arrays.logit_rows, ends[draws] - 1, 0)
        self.num_tokens[drawn_slots] += 1
        return drawn_slots


def _fill(array: NDArray[np.int32], values: NDArray[np.int32], rest: int) -> None:
    n = len(values)
    array[:n] = values
    array[n:] = rest
