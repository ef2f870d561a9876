"""Penalties on tokens that a sequence already has: repetition, frequency, presence.

**Meaning.** Repetition divides a positive logit and multiplies a negative one, for every token of
the prompt and the output. Then frequency times its count in the output, and presence once, are
subtracted for every token of the output. This is what transformers and vLLM compute.

**State.** For each slot that asks for a penalty, and for no other, its distinct tokens and how
often each was generated; a drawn token changes one entry. A step reads the entries of its rows as
flat lists of (row, token), so it costs what the distinct tokens cost, not what the vocabulary
does. A preempted sequence brings all its tokens back, so its counts are rebuilt when it returns.

Sources: Keskar et al. 2019 (CTRL) for repetition; OpenAI's API reference for the other two;
vLLM's `v1/sample/ops/penalties.py` for their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.contract import NewSequence, SamplingParams
from engine.sampling.columns import widened


@dataclass(frozen=True, slots=True, kw_only=True)
class PenaltyEntries:
    """Hold what a batch's penalties touch, one entry a (row, distinct token).

    `counts`: how often the token was generated. The penalties are those of the entry's row.
    All: [num_entries].
    """

    rows: NDArray[np.int64]
    token_ids: NDArray[np.int32]
    counts: NDArray[np.float32]
    repetition: NDArray[np.float32]
    frequency: NDArray[np.float32]
    presence: NDArray[np.float32]


def penalise(logits: Tensor, entries: PenaltyEntries) -> None:
    """Change logits on a CPU of tokens that are there already, in place; [num_rows, vocab_size]."""
    flat = logits.view(-1)
    index = torch.from_numpy(entries.rows * logits.shape[-1] + entries.token_ids)
    repetition = torch.from_numpy(entries.repetition)
    values = flat.index_select(0, index)
    values = torch.where(values > 0, values / repetition, values * repetition)
    values -= torch.from_numpy(entries.frequency * entries.counts)
    values -= torch.from_numpy(entries.presence * (entries.counts > 0))
    flat.index_copy_(0, index, values)


class PenaltyTable:
    """Count tokens for the slots that ask for penalties."""

    def __init__(self, *, max_num_seqs: int, max_num_tokens: int) -> None:
        self._max_num_tokens = max_num_tokens
        self._token_ids = np.zeros((max_num_seqs, min(64, max_num_tokens)), np.int32)
        self._counts = np.zeros_like(self._token_ids)
        # Distinct tokens of a slot; whatever is beyond them in its row means nothing.
        self._num_distinct = np.zeros(max_num_seqs, np.int64)
        self._repetition = np.ones(max_num_seqs, np.float32)
        self._frequency = np.zeros(max_num_seqs, np.float32)
        self._presence = np.zeros(max_num_seqs, np.float32)
        self._is_used = np.zeros(max_num_seqs, np.bool_)
        self._used: set[int] = set()

    def admit(self, sequence: NewSequence) -> None:
        """Count what a sequence has, if it asks for penalties."""
        slot, params = sequence.slot, sequence.params
        if not asks_for_penalties(params):
            return
        self._used.add(slot)
        self._is_used[slot] = True
        self._repetition[slot] = params.repetition_penalty
        self._frequency[slot] = params.frequency_penalty
        self._presence[slot] = params.presence_penalty
        # Only repetition looks at the prompt.
        begin = 0 if params.repetition_penalty != 1 else sequence.num_prompt_tokens
        token_ids = np.array(sequence.token_ids[begin:], np.int32)
        distinct, column = np.unique(token_ids, return_inverse=True)
        output = column[sequence.num_prompt_tokens - begin :]
        n = len(distinct)
        self._widen(n)
        self._token_ids[slot, :n] = distinct
        self._counts[slot, :n] = np.bincount(output, minlength=n)
        self._num_distinct[slot] = n

    def append(self, slots: NDArray[np.int32], token_ids: NDArray[np.int64]) -> None:
        """Count a drawn token of each slot; no slot may occur twice."""
        if not self._used:
            return
        mine = self._is_used[slots]
        if not mine.any():
            return
        slots, token_ids = slots[mine], token_ids[mine]
        num_distinct = self._num_distinct[slots]
        width = int(num_distinct.max()) + 1
        self._widen(width)
        known = self._token_ids[slots, :width] == token_ids[:, None]
        known &= np.arange(width) < num_distinct[:, None]
        is_known = known.any(axis=1)
        columns = np.where(is_known, known.argmax(axis=1), num_distinct)
        self._token_ids[slots, columns] = token_ids
        self._counts[slots, columns] = np.where(is_known, self._counts[slots, columns], 0) + 1
        self._num_distinct[slots] = num_distinct + ~is_known

    def entries(self, slots: NDArray[np.int32]) -> PenaltyEntries | None:
        """Read what penalises the rows of a batch; None where nothing does."""
        if not self._used:
            return None
        rows = np.flatnonzero(self._is_used[slots])
        slots = slots[rows]
        num_distinct = self._num_distinct[slots]
        if not num_distinct.any():
            return None
        width = int(num_distinct.max())
        inside = np.arange(width) < num_distinct[:, None]
        return PenaltyEntries(
            rows=np.repeat(rows, num_distinct),
            token_ids=self._token_ids[slots, :width][inside],
            counts=self._counts[slots, :width][inside].astype(np.float32),
            repetition=np.repeat(self._repetition[slots], num_distinct),
            frequency=np.repeat(self._frequency[slots], num_distinct),
            presence=np.repeat(self._presence[slots], num_distinct),
        )

    def release(self, slots: Sequence[int]) -> None:
        """Forget what slots had asked for."""
        if self._used:
            self._used.difference_update(slots)
            self._is_used[list(slots)] = False

    def clear(self) -> None:
        """Forget every slot."""
        self._used.clear()
        self._is_used[:] = False

    def _widen(self, width: int) -> None:
        self._token_ids = widened(self._token_ids, width, self._max_num_tokens)
        self._counts = widened(self._counts, width, self._max_num_tokens)


def asks_for_penalties(params: SamplingParams) -> bool:
    """Tell whether a request has any."""
    return (
        params.repetition_penalty != 1
        or params.frequency_penalty != 0
        or params.presence_penalty != 0
    )
