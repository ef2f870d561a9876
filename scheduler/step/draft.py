"""The plan of a step while it is being made, and once it is."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from engine.contract import DecodeRows, NewSequence, SequenceSlice, StepPlan
from engine.step_cost import StepFeatures, attended_tokens
from scheduler.running import RunningSet, Slots
from scheduler.sequence import Sequence


@dataclass(slots=True)
class Step:
    """Keep a plan with the sequences of its decodes and slices, and the rows that sample.

    It is the `number`th that was planned, from 1 on. `sampling` are these rows' slots, in the order
    of the result, and `epochs` whose they were.
    `features` are what the step's time depends on. One that `is_full` had no room for more prompts,
    and no long one of which each chunk takes a step.
    """

    number: int
    plan: StepPlan
    decodes: list[Sequence]
    slices: list[Sequence]
    sampling: Slots
    epochs: NDArray[np.intc]
    features: StepFeatures
    is_full: bool

    def sequence_of_slot(self) -> dict[int, Sequence]:
        """Find the rows of this step by slot, whatever has become of them since."""
        rows = dict(zip(self.plan.decodes.slots, self.decodes, strict=True))
        chunks = zip(self.plan.slices, self.slices, strict=True)
        return rows | {chunk.slot: sequence for chunk, sequence in chunks}


class Draft:
    """Gather the rows and slices of a step, and what its time depends on.

    Slices are added while there is `budget`, in tokens, those of scored prompts besides.
    """

    __slots__ = (
        "_attended_tokens",
        "_decode_context_tokens",
        "_num_prefill_tokens",
        "_num_prompt_logprobs",
        "_prefill_context_tokens",
        "_sequences",
        "admitted",
        "budget",
        "is_full",
        "rows",
        "slices",
    )

    def __init__(self, num_prompt_logprobs: int) -> None:
        self.budget = 0
        self.is_full = False
        self.rows = DecodeRows()
        self.slices: list[SequenceSlice] = []
        self.admitted: list[NewSequence] = []
        self._num_prompt_logprobs = num_prompt_logprobs
        self._sequences: list[Sequence] = []
        self._num_prefill_tokens = self._prefill_context_tokens = self._attended_tokens = 0
        self._decode_context_tokens = 0

    @property
    def num_tokens(self) -> int:
        return len(self.rows) + self._num_prefill_tokens

    def has_room_for(self, sequence: Sequence) -> bool:
        """Tell whether a prompt that is to be scored, if it is, can be for a token at least."""
        return sequence.prompt_logprobs is None or self._num_prompt_logprobs > 0

    def decode(
        self, slots: Slots, positions: NDArray[np.intc], block_ids: NDArray[np.intc]
    ) -> None:
        """Let rows compute the tokens at these positions, in new blocks or -1."""
        rows = self.rows
        rows.slots.frombytes(slots.astype(np.intc).tobytes())
        rows.positions.frombytes(positions.tobytes())
        rows.new_block_ids.frombytes(block_ids.tobytes())
        self._decode_context_tokens += int(positions.sum())

    def admit(self, sequence: Sequence, hit: list[int]) -> None:
        """Tell the engine of a sequence that it does not have."""
        self.admitted.append(_new_sequence(sequence, hit))

    def slice(self, sequence: Sequence, new_block_ids: list[int] | tuple[()]) -> bool:
        """Compute the next chunk of a prefill; returns whether it is the last, which draws."""
        start = sequence.num_computed
        num_tokens = min(self.budget, sequence.num_tokens - start)
        if sequence.prompt_logprobs is not None:
            num_tokens = min(num_tokens, self._num_prompt_logprobs)
            self._num_prompt_logprobs -= num_tokens
        samples = start + num_tokens == sequence.num_tokens
        self.budget -= num_tokens
        self._num_prefill_tokens += num_tokens
        self._prefill_context_tokens += start
        self._attended_tokens += attended_tokens(start, num_tokens)
        self._sequences.append(sequence)
        self.slices.append(SequenceSlice(sequence.slot, start, num_tokens, new_block_ids, samples))
        sequence.num_computed += num_tokens
        return samples

    def features(self, *, prefill_context_tokens: int = 0) -> StepFeatures:
        """Describe what the step has so far, and contexts of prefills that it is to have."""
        return StepFeatures(
            self._num_prefill_tokens,
            len(self.rows),
            self._prefill_context_tokens + prefill_context_tokens,
            self._decode_context_tokens,
            self._attended_tokens,
        )

    def finish(self, step_id: int, running: RunningSet) -> Step:
        """Make the step; what `running` has noted since the last one goes with its plan."""
        rows, slices = self.rows, self.slices
        released, preempted = running.take_changes()
        sampling = rows.slots[:]
        sampling.extend(chunk.slot for chunk in slices if chunk.sample)
        slots = np.array(sampling, dtype=np.intp)
        return Step(
            running.num_steps,
            StepPlan(step_id, rows, slices, self.admitted, released, preempted),
            running.decode_rows.sequences(slots[: len(rows)]),
            self._sequences,
            slots,
            running.decode_rows.epochs[slots],
            self.features(),
            self.is_full,
        )


def _new_sequence(sequence: Sequence, hit: list[int]) -> NewSequence:
    params = sequence.request.params
    if params.prompt_logprobs is not None and sequence.prompt_logprobs is None:
        # They are complete: after a preemption nothing is scored again.
        params = replace(params, prompt_logprobs=None)
    return NewSequence(
        slot=sequence.slot,
        request_id=sequence.request.request_id,
        token_ids=sequence.token_ids[:],
        num_prompt_tokens=sequence.num_prompt_tokens,
        num_computed=sequence.num_computed,
        block_ids=hit,
        params=params,
    )
