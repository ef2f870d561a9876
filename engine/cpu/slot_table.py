"""The state table of the CPU engine: one row a slot, and how a plan changes and reads it.

A plan carries deltas; this table turns them into the ragged batch of a step. Every column is a
preallocated array, and the work per step is a few vector operations plus a short loop over the
slices and the admitted, so a step that decodes 200 rows costs what one row does. Token and block
columns widen by doubling, up to the longest sequence. Knows no model and no clock.

A plan that contradicts the table is a bug of ours in the scheduler: it fails an assertion, and
with it the step, before anything is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.contract import DecodeRows, NewSequence, SequenceSlice, StepPlan
from engine.models.attention import AttentionBatch
from engine.sampling.columns import widened
from engine.sampling.constraints import StepMasks
from engine.sampling.logprobs import LogprobRows, PromptRows
from engine.sampling.sampler import LogitEdits, SamplingRows
from engine.sampling.state import SamplingState


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """Hold one step's model inputs; the decode rows come first, then the slices.

    `token_ids`, `positions`: [num_tokens]. `logit_rows`: the tokens that sample, and after them
    those that score a prompt, or None where all sample. `slots`: whose next token each row that
    samples draws, [num_rows]. `edits`, `masks`, `logprobs`, `prompt`: None where no row asks for
    them.
    """

    token_ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    attention: AttentionBatch
    logit_rows: NDArray[np.int64] | None
    slots: NDArray[np.int32]
    sampling: SamplingRows
    edits: LogitEdits | None
    masks: StepMasks | None
    logprobs: LogprobRows | None
    prompt: PromptRows | None


class SlotTable:
    """Keep token ids, block tables and sampling parameters by slot."""

    def __init__(
        self,
        *,
        max_num_seqs: int,
        max_model_len: int,
        block_size: int,
        vocab_size: int,
        eos_token_ids: frozenset[int] = frozenset(),
    ) -> None:
        self._block_size = block_size
        # One more than a context: the last token drawn is stored but never computed.
        self._max_tokens = max_model_len + 1
        self._max_blocks = -(-max_model_len // block_size)
        self._tokens = np.zeros((max_num_seqs, min(256, self._max_tokens)), np.int32)
        self._num_tokens = np.zeros(max_num_seqs, np.int64)
        self._blocks = np.zeros((max_num_seqs, min(8, self._max_blocks)), np.int32)
        self._num_blocks = np.zeros(max_num_seqs, np.int64)
        self._sampling = SamplingState(
            max_num_seqs=max_num_seqs,
            vocab_size=vocab_size,
            eos_token_ids=eos_token_ids,
        )
        # Slot → (prompt tokens, alternatives), where the prompt is to be scored.
        self._scored_prompts: dict[int, tuple[int, int]] = {}

    def apply(self, plan: StepPlan) -> None:
        """Change the table in the contract's order: released, admitted, then new blocks."""
        if plan.released:
            self._num_tokens[list(plan.released)] = 0
            self._num_blocks[list(plan.released)] = 0
            self._sampling.release(plan.released, plan.preempted)
            if self._scored_prompts:
                for slot in plan.released:
                    self._scored_prompts.pop(slot, None)
        for sequence in plan.admitted:
            self._admit(sequence)
        for piece in plan.slices:
            self._append_blocks(piece.slot, piece.new_block_ids)
        self._append_decode_blocks(plan.decodes)

    def batch(self, plan: StepPlan) -> StepBatch:
        """Read out the inputs of a plan that has been applied."""
        slots = np.array(plan.decodes.slots, np.int32)
        decode_positions = np.array(plan.decodes.positions, np.int32).astype(np.int64)
        assert (decode_positions == self._num_tokens[slots] - 1).all(), "decode of an old token"
        if not plan.slices:
            return self._assemble(
                seq_slots=slots,
                num_decodes=len(slots),
                query_lens=np.ones(len(slots), np.int32),
                positions=decode_positions,
                sampling=None,
                prompt=None,
            )
        pieces = plan.slices
        starts = np.array([p.start for p in pieces], np.int64)
        lens = np.array([p.n_tokens for p in pieces], np.int64)
        sampling = np.array([True] * len(slots) + [p.sample for p in pieces])
        seq_slots = np.concatenate((slots, np.array([p.slot for p in pieces], np.int32)))
        self._check_slices(pieces, seq_slots[len(slots) :], starts + lens)
        before = np.cumsum(lens) - lens
        slice_positions = np.arange(lens.sum()) + np.repeat(starts - before, lens)
        return self._assemble(
            seq_slots=seq_slots,
            num_decodes=len(slots),
            query_lens=np.concatenate((np.ones(len(slots), np.int32), lens.astype(np.int32))),
            positions=np.concatenate((decode_positions, slice_positions)),
            sampling=sampling,
            prompt=self._prompt_rows(pieces, len(slots) + before) if self._scored_prompts else None,
        )

    def append(self, slots: NDArray[np.int32], token_ids: NDArray[np.int64]) -> None:
        """Add a drawn token to each slot; no slot may occur twice."""
        if not len(slots):
            return
        ends = self._num_tokens[slots]
        self._tokens = widened(self._tokens, int(ends.max()) + 1, self._max_tokens)
        self._tokens[slots, ends] = token_ids
        self._num_tokens[slots] = ends + 1
        self._sampling.append(slots, token_ids)

    def clear(self) -> None:
        """Forget every slot."""
        self._num_tokens[:] = 0
        self._num_blocks[:] = 0
        self._sampling.clear()
        self._scored_prompts.clear()

    def _admit(self, sequence: NewSequence) -> None:
        slot, n, params = sequence.slot, len(sequence.token_ids), sequence.params
        assert n > sequence.num_computed >= 0, "an admitted sequence has something to compute"
        self._tokens = widened(self._tokens, n, self._max_tokens)
        self._tokens[slot, :n] = np.array(sequence.token_ids, np.int32)
        self._num_tokens[slot] = n
        self._num_blocks[slot] = 0
        self._append_blocks(slot, sequence.block_ids)
        self._sampling.admit(sequence)
        if params.prompt_logprobs is not None:
            self._scored_prompts[slot] = (sequence.num_prompt_tokens, params.prompt_logprobs)

    def _append_blocks(self, slot: int, block_ids: Sequence[int]) -> None:
        if not len(block_ids):
            return
        begin = int(self._num_blocks[slot])
        end = begin + len(block_ids)
        self._blocks = widened(self._blocks, end, self._max_blocks)
        self._blocks[slot, begin:end] = block_ids
        self._num_blocks[slot] = end

    def _append_decode_blocks(self, decodes: DecodeRows) -> None:
        new_blocks = np.array(decodes.new_block_ids, np.int32)
        growing = np.flatnonzero(new_blocks >= 0)
        if not len(growing):
            return
        slots = np.array(decodes.slots, np.int32)[growing]
        ends = self._num_blocks[slots]
        self._blocks = widened(self._blocks, int(ends.max()) + 1, self._max_blocks)
        self._blocks[slots, ends] = new_blocks[growing]
        self._num_blocks[slots] = ends + 1

    def _check_slices(
        self, pieces: Sequence[SequenceSlice], slots: NDArray[np.int32], ends: NDArray[np.int64]
    ) -> None:
        newest = ends == self._num_tokens[slots]
        samples = np.array([p.sample for p in pieces])
        assert (ends <= self._num_tokens[slots]).all(), "slice beyond the tokens of its sequence"
        assert (newest | ~samples).all(), "a slice samples only at the newest token"
        assert not any(len(p.drafts) for p in pieces), "drafts are not among the capabilities"

    def _assemble(
        self,
        *,
        seq_slots: NDArray[np.int32],
        num_decodes: int,
        query_lens: NDArray[np.int32],
        positions: NDArray[np.int64],
        sampling: NDArray[np.bool_] | None,
        prompt: PromptRows | None,
    ) -> StepBatch:
        ends = np.cumsum(query_lens, dtype=np.int64)
        context_lens = (positions[ends - 1] + 1).astype(np.int32)
        num_blocks = -(-context_lens // self._block_size)
        assert (num_blocks <= self._num_blocks[seq_slots]).all(), "tokens without a block"
        if sampling is None:
            slots, logit_rows = seq_slots, None
        else:
            slots, logit_rows = seq_slots[sampling], ends[sampling] - 1
        if prompt is not None:
            assert logit_rows is not None, "prompts are computed by slices"
            logit_rows = np.concatenate((logit_rows, prompt.logit_rows))
        drawn_positions = self._num_tokens[slots]
        width = int(num_blocks.max(initial=0))
        return StepBatch(
            token_ids=self._tokens[np.repeat(seq_slots, query_lens), positions].astype(np.int64),
            positions=positions,
            attention=AttentionBatch(
                num_decodes=num_decodes,
                positions=positions,
                query_lens=query_lens,
                context_lens=context_lens,
                block_tables=self._blocks[seq_slots, :width],
            ),
            logit_rows=logit_rows,
            slots=slots,
            sampling=self._sampling.rows(slots, drawn_positions),
            edits=self._sampling.edits(slots, drawn_positions),
            masks=self._sampling.masks(slots),
            logprobs=self._sampling.logprob_rows(slots),
            prompt=prompt,
        )

    def _prompt_rows(
        self, pieces: Sequence[SequenceSlice], first_tokens: NDArray[np.int64]
    ) -> PromptRows | None:
        """Find the prompt tokens that slices score: those after the tokens that they compute.

        `first_tokens`: where in the batch each slice begins, [num_slices].
        """
        found = [
            (piece, first, *self._scored_prompts[piece.slot])
            for piece, first in zip(pieces, first_tokens.tolist(), strict=True)
            if piece.slot in self._scored_prompts
        ]
        if not found:
            return None
        lens = [max(0, min(p.start + p.n_tokens, n - 1) - p.start) for p, _, n, _ in found]
        rows = zip(found, lens, strict=True)
        scored = [(p, first, k, np.arange(n)) for (p, first, _, k), n in rows]
        return PromptRows(
            slots=[piece.slot for piece, *_ in found],
            lens=lens,
            logit_rows=np.concatenate([first + offsets for _, first, _, offsets in scored]),
            token_ids=np.concatenate(
                [self._tokens[p.slot, p.start + 1 + offsets] for p, _, _, offsets in scored]
            ).astype(np.int64),
            num_top=np.repeat(np.array([k for *_, k in found], np.int64), lens),
        )
