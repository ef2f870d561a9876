"""Builds the plan of one step.

In order: all rows that decode; then the prefills that are under way; then new ones from the
queue, until the first that does not fit, so that a large request is not overtaken for ever. All
within the engine's token budget and its rows.

A sequence gets the blocks for all its known tokens when it is admitted, though its chunks may
take several steps: prefills can then never block each other, and only decoding can run out. What
the newest token of a row is need not be known: the engine has it on the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from engine.contract import DecodeRows, EngineInfo, NewSequence, SequenceSlice, StepPlan
from engine.kv.block_pool import BlockPool
from scheduler.accounts import Accounts
from scheduler.fair_tree import FairTree
from scheduler.preemption import make_room
from scheduler.running import RunningSet
from scheduler.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Step:
    """Keep a plan with the sequences of its decodes and slices, and of the rows that sample."""

    plan: StepPlan
    decodes: list[Sequence]
    slices: list[Sequence]
    sampling: list[Sequence]

    def sequence_of_slot(self) -> dict[int, Sequence]:
        """Find the rows of this step by slot, whatever has become of them since."""
        rows = dict(zip(self.plan.decodes.slots, self.decodes, strict=True))
        chunks = zip(self.plan.slices, self.slices, strict=True)
        return rows | {chunk.slot: sequence for chunk, sequence in chunks}


class Composer:
    """Compose steps for one engine from what runs and what waits."""

    def __init__(
        self,
        info: EngineInfo,
        pool: BlockPool,
        waiting: FairTree,
        running: RunningSet,
        accounts: Accounts,
        requeue: Callable[[Sequence, float], None],
    ) -> None:
        self._max_num_batched_tokens = info.max_num_batched_tokens
        self._max_num_prompt_logprobs = info.max_num_prompt_logprobs
        self._pool = pool
        self._waiting = waiting
        self._running = running
        self._accounts = accounts
        self._requeue = requeue

    def compose(self, step_id: int, now: float) -> Step | None:
        """Plan the next step, or return None where there is nothing to compute.

        What was released stays noted for the next plan that is not empty.
        """
        victims = make_room(self._running, self._pool)
        for victim in victims:
            self._requeue(victim, now)
        rows, decodes = self._decode()
        draft = _Draft(self._max_num_batched_tokens - len(decodes), self._max_num_prompt_logprobs)
        self._continue_prefills(draft)
        # A victim must not take back at once what it has just given.
        if not victims:
            self._admit(draft, now)
        if not decodes and not draft.slices:
            return None
        sampling = decodes.copy()
        for sequence, chunk in zip(draft.sequences, draft.slices, strict=True):
            if chunk.sample:
                sampling.append(sequence)
        released, preempted = self._running.take_changes()
        plan = StepPlan(step_id, rows, draft.slices, draft.admitted, released, preempted)
        return Step(plan, decodes, draft.sequences, sampling)

    def _decode(self) -> tuple[DecodeRows, list[Sequence]]:
        """Let every row decode that may draw one more token; runs once a row and step."""
        rows = DecodeRows()
        add_slot, add_position = rows.slots.append, rows.positions.append
        add_block = rows.new_block_ids.append
        block_size = self._pool.block_size
        sequences: list[Sequence] = []
        for sequence in self._running.decoding:
            num_tokens = sequence.num_tokens
            if num_tokens >= sequence.pause_at:
                continue
            position = num_tokens - 1
            add_slot(sequence.slot)
            add_position(position)
            add_block(-1 if position % block_size else sequence.table.append_block())
            sequence.num_computed = num_tokens
            sequence.num_tokens = num_tokens + 1
            sequences.append(sequence)
        return rows, sequences

    def _continue_prefills(self, draft: _Draft) -> None:
        for sequence in list(self._running.prefilling):
            if not draft.budget:
                return
            if draft.has_room_for(sequence):
                self._slice(sequence, (), draft)

    def _admit(self, draft: _Draft, now: float) -> None:
        while draft.budget and not self._running.is_full:
            sequence = self._waiting.peek(now)
            # A token in flight must land first: the engine is handed all tokens on admission.
            if sequence is None or sequence.num_in_flight or not draft.has_room_for(sequence):
                return
            hit = self._fit(sequence)
            if hit is None:
                return
            self._waiting.remove(sequence, now)
            self._running.admit(sequence)
            new_block_ids = self._start(sequence, hit)
            self._accounts.admit(sequence, now)
            draft.admitted.append(_new_sequence(sequence, hit))
            self._slice(sequence, new_block_ids, draft)

    def _fit(self, sequence: Sequence) -> list[int] | None:
        """Find the blocks of a prefix hit, or None where the rest does not fit beside them.

        Some blocks are held back for the rows that decode, or they would soon preempt the
        newcomer; a sequence that would run alone needs no such care.
        """
        pool = self._pool
        hit = sequence.table.match(sequence.token_ids)
        known = sequence.prompt_logprobs
        if known is not None:
            # What is still to be scored must be computed, whoever computed it before.
            hit = hit[: (len(known) - 1) // pool.block_size]
        num_new = sequence.table.blocks_missing(sequence.num_tokens) - len(hit)
        reserve = 0
        if len(self._running):
            reserve = max(1, pool.num_blocks // 100, len(self._running.decoding) // 8)
        fits = num_new + pool.count_idle(hit) + reserve <= pool.num_free
        return hit if fits else None

    def _start(self, sequence: Sequence, hit: list[int]) -> list[int]:
        sequence.table.take(hit)
        new_block_ids = sequence.table.allocate(sequence.num_tokens)
        assert new_block_ids is not None, "_fit has counted"
        sequence.num_computed = len(hit) * self._pool.block_size
        if not sequence.was_admitted:
            sequence.was_admitted = True
            sequence.num_cached_tokens = sequence.num_computed
        return new_block_ids

    def _slice(
        self, sequence: Sequence, new_block_ids: list[int] | tuple[()], draft: _Draft
    ) -> None:
        """Plan the next chunk of a prefill; its last one draws a token."""
        start = sequence.num_computed
        n_tokens = min(draft.budget, sequence.num_tokens - start)
        if sequence.prompt_logprobs is not None:
            n_tokens = min(n_tokens, draft.num_prompt_logprobs)
            draft.num_prompt_logprobs -= n_tokens
        samples = start + n_tokens == sequence.num_tokens
        assert sequence.num_tokens < sequence.pause_at, "a paused sequence is never admitted"
        draft.budget -= n_tokens
        draft.sequences.append(sequence)
        draft.slices.append(SequenceSlice(sequence.slot, start, n_tokens, new_block_ids, samples))
        sequence.num_computed += n_tokens
        if samples:
            sequence.num_tokens += 1
            self._running.start_decoding(sequence)


class _Draft:
    """Gather slices while there is budget, in tokens, those of scored prompts besides."""

    __slots__ = ("admitted", "budget", "num_prompt_logprobs", "sequences", "slices")

    def __init__(self, budget: int, num_prompt_logprobs: int) -> None:
        self.budget = budget
        self.num_prompt_logprobs = num_prompt_logprobs
        self.admitted: list[NewSequence] = []
        self.slices: list[SequenceSlice] = []
        self.sequences: list[Sequence] = []

    def has_room_for(self, sequence: Sequence) -> bool:
        return sequence.prompt_logprobs is None or self.num_prompt_logprobs > 0


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
