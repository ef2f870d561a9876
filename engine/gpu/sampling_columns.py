"""What each slot asked of sampling, on the device, and what few ask for on the host.

Temperature, filters and seeds are columns that the drawing kernel reads by slot. Biases depend on
the position alone, which the host knows ahead of the token; they are sent with the step. Penalties
depend on tokens that may not have come back yet, so their counts live on the device: a row for
every slot, taken when the first request asks for penalties.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from engine.contract import NewSequence
from engine.gpu.staging import upload
from engine.kernels.operations import IN_PROMPT, DrawColumns, PenaltyColumns
from engine.sampling.constraints import ConstraintTable, StepMasks
from engine.sampling.logit_bias import BiasEntries, BiasTable
from engine.sampling.logprobs import LogprobRows, find_logprob_rows
from engine.sampling.penalties import asks_for_penalties


class SamplingColumns:
    """Keep the sampling parameters of every slot; they change with admission alone."""

    def __init__(
        self,
        *,
        max_num_seqs: int,
        vocab_size: int,
        eos_token_ids: frozenset[int],
        device: torch.device,
    ) -> None:
        self._num_rows = max_num_seqs + 1
        self._vocab_size = vocab_size
        self._device = device
        self.draw = DrawColumns(
            temperature=self._column(0.0),
            top_k=torch.zeros(self._num_rows, dtype=torch.int32, device=device),
            top_p=self._column(1.0),
            min_p=self._column(0.0),
            seeds=torch.zeros(self._num_rows, dtype=torch.int64, device=device),
        )
        self.penalties: PenaltyColumns | None = None
        self._penalised: set[int] = set()
        self._bias = BiasTable(eos_token_ids=eos_token_ids)
        self._constraints = ConstraintTable(vocab_size=vocab_size, num_slots=max_num_seqs)
        # Slot → how many alternatives.
        self._logprobs: dict[int, int] = {}

    def admit(self, sequences: Sequence[NewSequence]) -> None:
        """Take the parameters of sequences that get a slot."""
        if not sequences:
            return
        self.release([sequence.slot for sequence in sequences])
        params = [sequence.params for sequence in sequences]
        slots = upload(np.array([s.slot for s in sequences], np.int64), self._device)
        vocab_size = self._vocab_size
        columns = (
            (self.draw.temperature, np.array([p.temperature for p in params], np.float32)),
            (self.draw.top_k, np.array([min(p.top_k, vocab_size) for p in params], np.int32)),
            (self.draw.top_p, np.array([p.top_p for p in params], np.float32)),
            (self.draw.min_p, np.array([p.min_p for p in params], np.float32)),
            (self.draw.seeds, np.array([_word(p.seed) for p in params], np.uint64).view(np.int64)),
        )
        for column, values in columns:
            column.index_copy_(0, slots, upload(values, self._device))
        for sequence in sequences:
            self._bias.admit(sequence)
            self._constraints.admit(sequence)
            if sequence.params.logprobs is not None:
                self._logprobs[sequence.slot] = sequence.params.logprobs
            if asks_for_penalties(sequence.params):
                self._penalise(sequence)

    def release(self, slots: Sequence[int], preempted: Sequence[str] = ()) -> None:
        """Forget the rare wishes of slots; the plain columns are overwritten anyway.

        Constraints of requests that are `preempted` are kept.
        """
        self._bias.release(slots)
        self._constraints.release(slots, preempted)
        for slot in slots:
            self._logprobs.pop(slot, None)
            if slot in self._penalised:
                self._penalised.discard(slot)
                self._set_penalties(slot, 1.0, 0.0, 0.0)

    def bias_entries(
        self, slots: NDArray[np.int32], positions: NDArray[np.int32]
    ) -> BiasEntries | None:
        """Read what is added to the logits of rows that draw the tokens at `positions`."""
        return self._bias.entries(slots, positions.astype(np.int64))

    def masks(self, slots: NDArray[np.int32]) -> StepMasks | None:
        """Note the rows that draw under a constraint, whose tokens so far have all landed."""
        return self._constraints.step(slots)

    def penalises(self, slots: NDArray[np.int32]) -> bool:
        """Tell whether any of these rows has penalties."""
        return bool(self._penalised) and not self._penalised.isdisjoint(slots.tolist())

    def logprob_rows(self, slots: NDArray[np.int32]) -> LogprobRows | None:
        """Find the rows whose draws are to be scored; None where none is."""
        return find_logprob_rows(self._logprobs, slots)

    def clear(self) -> None:
        """Forget every slot."""
        self.release(sorted(self._penalised))
        self._bias.clear()
        self._constraints.clear()
        self._logprobs.clear()

    def _penalise(self, sequence: NewSequence) -> None:
        """Count what a sequence has, of its prompt and since."""
        if self.penalties is None:
            counts = torch.zeros(
                (self._num_rows, self._vocab_size), dtype=torch.int16, device=self._device
            )
            self.penalties = PenaltyColumns(
                repetition=self._column(1.0),
                frequency=self._column(0.0),
                presence=self._column(0.0),
                counts=counts,
            )
        params, n = sequence.params, sequence.num_prompt_tokens
        tokens = np.array(sequence.token_ids, np.int64)
        counts_of_slot = np.bincount(tokens[n:], minlength=self._vocab_size).astype(np.int16)
        counts_of_slot[tokens[:n]] += IN_PROMPT
        self.penalties.counts[sequence.slot].copy_(upload(counts_of_slot, self._device))
        self._penalised.add(sequence.slot)
        self._set_penalties(
            sequence.slot,
            params.repetition_penalty,
            params.frequency_penalty,
            params.presence_penalty,
        )

    def _set_penalties(
        self, slot: int, repetition: float, frequency: float, presence: float
    ) -> None:
        assert self.penalties is not None, "somebody asked for penalties"
        self.penalties.repetition[slot] = repetition
        self.penalties.frequency[slot] = frequency
        self.penalties.presence[slot] = presence

    def _column(self, value: float) -> torch.Tensor:
        return torch.full((self._num_rows,), value, dtype=torch.float32, device=self._device)


def _word(seed: int) -> int:
    return seed & 0xFFFF_FFFF_FFFF_FFFF
