"""Penalties on tokens that a sequence already has: repetition, frequency, presence.

**Meaning.** Repetition divides a positive logit and multiplies a negative one, for every token of
the prompt and the output. Then frequency times its count in the output, and presence once, are
subtracted for every token of the output. This is what transformers and vLLM compute.

**State.** For each slot that asks for a penalty, and for no other, its distinct tokens and how
often each was generated; a drawn token changes one entry. A step reads the entries of its rows as
flat lists of (row, token), so a row costs what its own distinct tokens do, not what the vocabulary
or another row does. A preempted sequence brings all its tokens back, so its counts are rebuilt when
it returns.

Sources: Keskar et al. 2019 (CTRL) for repetition; OpenAI's API reference for the other two;
vLLM's `v1/sample/ops/penalties.py` for their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from engine.contract import NewSequence, SamplingParams


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
    flat = logits.view(-1).numpy()
    index = entries.rows * logits.shape[-1] + entries.token_ids
    values = flat[index]
    # What is not finite then is its row's fault, which the draw finds.
    with np.errstate(all="ignore"):
        values = np.where(values > 0, values / entries.repetition, values * entries.repetition)
        values -= entries.frequency * entries.counts
        values -= entries.presence * (entries.counts > 0)
    flat[index] = values


class PenaltyTable:
    """Count tokens for the slots that ask for penalties."""

    def __init__(self, *, max_num_seqs: int) -> None:
        self._repetition = np.ones(max_num_seqs, np.float32)
        self._frequency = np.zeros(max_num_seqs, np.float32)
        self._presence = np.zeros(max_num_seqs, np.float32)
        self._counts: dict[int, _Counts] = {}

    def admit(self, sequence: NewSequence) -> None:
        """Count what a sequence has, if it asks for penalties."""
        slot, params = sequence.slot, sequence.params
        if not asks_for_penalties(params):
            return
        self._repetition[slot] = params.repetition_penalty
        self._frequency[slot] = params.frequency_penalty
        self._presence[slot] = params.presence_penalty
        # Only repetition looks at the prompt.
        begin = 0 if params.repetition_penalty != 1 else sequence.num_prompt_tokens
        token_ids = np.array(sequence.token_ids[begin:], np.int32)
        self._counts[slot] = _Counts(token_ids, token_ids[sequence.num_prompt_tokens - begin :])

    def append(self, slots: NDArray[np.int32], token_ids: NDArray[np.int64]) -> None:
        """Count a drawn token of each slot; no slot may occur twice."""
        if not self._counts:
            return
        for slot, token_id in zip(slots.tolist(), token_ids.tolist(), strict=True):
            counts = self._counts.get(slot)
            if counts is not None:
                counts.add(token_id)

    def entries(self, slots: NDArray[np.int32]) -> PenaltyEntries | None:
        """Read what penalises the rows of a batch; None where nothing does."""
        if not self._counts:
            return None
        asked = [(row, slot) for row, slot in enumerate(slots.tolist()) if slot in self._counts]
        counts = [self._counts[slot] for _, slot in asked]
        sizes = [each.num_distinct for each in counts]
        if not any(sizes):
            return None
        rows, mine = np.array(asked, np.int64).T
        return PenaltyEntries(
            rows=np.repeat(rows, sizes),
            token_ids=np.concatenate([each.token_ids for each in counts]),
            counts=np.concatenate([each.counts for each in counts]),
            repetition=np.repeat(self._repetition[mine], sizes),
            frequency=np.repeat(self._frequency[mine], sizes),
            presence=np.repeat(self._presence[mine], sizes),
        )

    def release(self, slots: Sequence[int]) -> None:
        """Forget what slots had asked for."""
        if self._counts:
            for slot in slots:
                self._counts.pop(slot, None)

    def clear(self) -> None:
        """Forget every slot."""
        self._counts.clear()


class _Counts:
    """Hold the distinct tokens of one sequence: first those it came with, in their order.

    Each sequence has its own, so that one with many costs nobody else's rows anything.
    """

    __slots__ = ("_columns", "_counts", "_num_sorted", "_token_ids", "num_distinct")

    def __init__(self, token_ids: NDArray[np.int32], output: NDArray[np.int32]) -> None:
        """Take distinct tokens of `token_ids`, and count those of `output`, all among them."""
        self._token_ids = np.unique(token_ids)
        self._num_sorted = self.num_distinct = len(self._token_ids)
        found = np.searchsorted(self._token_ids, output)
        self._counts = np.bincount(found, minlength=self._num_sorted).astype(np.float32)
        # Of tokens that were drawn here.
        self._columns: dict[int, int] = {}

    @property
    def token_ids(self) -> NDArray[np.int32]:
        return self._token_ids[: self.num_distinct]

    @property
    def counts(self) -> NDArray[np.float32]:
        return self._counts[: self.num_distinct]

    def add(self, token_id: int) -> None:
        """Count a drawn token."""
        column = self._columns.get(token_id)
        if column is None:
            column = self._columns[token_id] = self._column_of(token_id)
        self._counts[column] += 1

    def _column_of(self, token_id: int) -> int:
        """Find a token among those it came with, or give it a place of its own."""
        known = self._token_ids[: self._num_sorted]
        # Of the same type: else they are all copied.
        column = int(known.searchsorted(np.int32(token_id)))
        if column < len(known) and known[column] == token_id:
            return column
        column = self.num_distinct
        if column == len(self._token_ids):
            more = np.zeros(max(64, column), np.int32)
            self._token_ids = np.concatenate([self._token_ids, more])
            self._counts = np.concatenate([self._counts, more.astype(np.float32)])
        self._token_ids[column] = token_id
        self.num_distinct += 1
        return column


def asks_for_penalties(params: SamplingParams) -> bool:
    """Tell whether a request has any."""
    return (
        params.repetition_penalty != 1
        or params.frequency_penalty != 0
        or params.presence_penalty != 0
    )
