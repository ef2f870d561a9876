"""What each slot asked of sampling, kept as columns, and what a batch reads out of it.

The plain parameters are an entry a slot. What few requests use (biases, penalties, logprobs)
is kept for the slots that use it, and a batch without such a slot pays a look at an empty set.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine.contract import NewSequence
from engine.sampling.constraints import ConstraintTable, StepMasks
from engine.sampling.logit_bias import BiasTable
from engine.sampling.logprobs import LogprobRows, find_logprob_rows
from engine.sampling.penalties import PenaltyTable
from engine.sampling.sampler import LogitEdits, SamplingRows


class SamplingState:
    """Keep the sampling parameters of every slot; they change with admission and each draw."""

    def __init__(
        self,
        *,
        max_num_seqs: int,
        vocab_size: int,
        eos_token_ids: frozenset[int],
    ) -> None:
        self._temperature = np.zeros(max_num_seqs, np.float32)
        self._top_k = np.zeros(max_num_seqs, np.int64)
        self._top_p = np.ones(max_num_seqs, np.float32)
        self._min_p = np.zeros(max_num_seqs, np.float32)
        self._seeds = np.zeros(max_num_seqs, np.uint64)
        self._bias = BiasTable(eos_token_ids=eos_token_ids)
        self._penalties = PenaltyTable(max_num_seqs=max_num_seqs)
        self._constraints = ConstraintTable(vocab_size=vocab_size, num_slots=max_num_seqs)
        # Slot → how many alternatives.
        self._logprobs: dict[int, int] = {}

    def admit(self, sequence: NewSequence) -> None:
        """Take the parameters of a sequence that gets a slot."""
        slot, params = sequence.slot, sequence.params
        self._temperature[slot] = params.temperature
        self._top_k[slot] = params.top_k
        self._top_p[slot] = params.top_p
        self._min_p[slot] = params.min_p
        self._seeds[slot] = params.seed & 0xFFFF_FFFF_FFFF_FFFF
        self._bias.admit(sequence)
        self._penalties.admit(sequence)
        self._constraints.admit(sequence)
        if params.logprobs is not None:
            self._logprobs[slot] = params.logprobs

    def append(self, slots: NDArray[np.int32], token_ids: NDArray[np.int64]) -> None:
        """Learn the drawn token of each slot; no slot may occur twice."""
        self._penalties.append(slots, token_ids)

    def rows(self, slots: NDArray[np.int32], positions: NDArray[np.int64]) -> SamplingRows:
        """Read the parameters of a batch that draws the tokens at `positions`."""
        return SamplingRows(
            temperature=self._temperature[slots],
            top_k=self._top_k[slots],
            top_p=self._top_p[slots],
            min_p=self._min_p[slots],
            seeds=self._seeds[slots],
            positions=positions,
        )

    def edits(self, slots: NDArray[np.int32], positions: NDArray[np.int64]) -> LogitEdits | None:
        """Read what changes a batch's logits before they are drawn from; None: nothing does."""
        bias = self._bias.entries(slots, positions)
        penalties = self._penalties.entries(slots)
        return None if bias is None and penalties is None else LogitEdits(bias, penalties)

    def masks(self, slots: NDArray[np.int32]) -> StepMasks | None:
        """Note the rows of a batch that draw under a constraint; None where none does."""
        return self._constraints.step(slots)

    def logprob_rows(self, slots: NDArray[np.int32]) -> LogprobRows | None:
        """Find the rows of a batch whose draws are to be scored; None where none is."""
        return find_logprob_rows(self._logprobs, slots)

    def release(self, slots: Sequence[int], preempted: Sequence[str] = ()) -> None:
        """Forget the rare wishes of slots; the plain columns are overwritten anyway.

        Constraints of requests that are `preempted` are kept.
        """
        self._bias.release(slots)
        self._penalties.release(slots)
        self._constraints.release(slots, preempted)
        if self._logprobs:
            for slot in slots:
                self._logprobs.pop(slot, None)

    def clear(self) -> None:
        """Forget every slot."""
        self._bias.clear()
        self._penalties.clear()
        self._constraints.clear()
        self._logprobs.clear()
