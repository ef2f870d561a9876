"""Builds the plan of one step.

In order: all online rows that decode; then prefills, those under way and new ones from the tree
by deadline, as many tokens as the tightest promise leaves time for; then rows and prefills of the
batch band into what is left. All within the engine's token budget and its rows.

Admission stops at the first request of the tree that does not fit: passing it by would let small
requests of others keep a large one out for ever, whatever its share. `max_bypasses` is how often
one may be passed all the same. A request of a higher band sends lower ones back to fit.

A sequence gets the blocks for all its known tokens when it is admitted, though its chunks may
take several steps: prefills can then never block each other, and only decoding can run out. What
the newest token of a row is need not be known: the engine has it on the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from engine.contract import DecodeRows, EngineInfo, NewSequence, SequenceSlice, StepPlan
from engine.kv.block_pool import BlockPool
from engine.step_cost import StepFeatures, attended_tokens
from scheduler.accounts import Accounts
from scheduler.config import ComposerConfig
from scheduler.decoding import Slots
from scheduler.deferral import Deferral
from scheduler.fair_tree import FairTree
from scheduler.kv_budget import KvBudget
from scheduler.preemption import Preemption
from scheduler.request import Band
from scheduler.running import RunningSet
from scheduler.sequence import Sequence
from scheduler.step_budget import StepBudget
from scheduler.step_limits import StepLimits

_MAX_DISPLACING = 8


@dataclass(slots=True)
class Step:
    """Keep a plan with the sequences of its decodes and slices, and the rows that sample.

    `sampling` are these rows' slots, in the order of the result, and `epochs` whose they were.
    `features` are what the step's time depends on.
    """

    plan: StepPlan
    decodes: list[Sequence]
    slices: list[Sequence]
    sampling: Slots
    epochs: NDArray[np.intc]
    features: StepFeatures

    def sequence_of_slot(self) -> dict[int, Sequence]:
        """Find the rows of this step by slot, whatever has become of them since."""
        rows = dict(zip(self.plan.decodes.slots, self.decodes, strict=True))
        chunks = zip(self.plan.slices, self.slices, strict=True)
        return rows | {chunk.slot: sequence for chunk, sequence in chunks}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Hold what the composer works with; `requeue` lets a victim wait again."""

    pool: BlockPool
    waiting: FairTree
    running: RunningSet
    deferral: Deferral
    accounts: Accounts
    preemption: Preemption
    step_budget: StepBudget
    kv_budget: KvBudget
    limits: StepLimits
    requeue: Callable[[Sequence, float], None]
    drop_expired: Callable[[Sequence, float], bool]


class Composer:
    """Compose steps for one engine from what runs and what waits."""

    def __init__(self, config: ComposerConfig, info: EngineInfo, parts: Parts) -> None:
        self._config = config
        self._info = info
        self._parts = parts
        self._pool = parts.pool
        self._waiting = parts.waiting
        self._running = parts.running
        self._num_steps_to_admission = 0

    @property
    def _max_num_tokens(self) -> int:
        limit = self._parts.limits.max_num_tokens
        return min(limit, self._config.max_num_batched_tokens or limit)

    def compose(self, step_id: int, now: float) -> Step | None:
        """Plan the next step, or return None where there is nothing to compute.

        What was released stays noted for the next plan that is not empty.
        """
        parts, running = self._parts, self._running
        victims = parts.preemption.make_room()
        displaced = [] if victims else self._displace(now)
        for victim in (*victims, *displaced):
            parts.requeue(victim, now)
        draft = _Draft(self._info.max_num_prompt_logprobs)
        # A victim must not take back at once what it has just given.
        admits = not victims and self._is_time_to_admit()
        if not self._config.prefill_first:
            self._decode(running.decode_rows.online(), draft)
        self._prefill(draft, admits, now)
        if self._config.prefill_first and not draft.slices:
            self._decode(running.decode_rows.online(), draft)
        self._harvest(draft, admits, now)
        if not draft.num_tokens:
            if self._num_steps_to_admission and len(self._waiting):
                # Rows run, but none may draw: looking at the queue only now and then is for others.
                self._num_steps_to_admission = 0
                return self.compose(step_id, now)
            return None
        running.num_steps += 1
        released, preempted = running.take_changes()
        rows, slices = draft.rows, draft.slices
        sampling = rows.slots[:]
        sampling.extend(chunk.slot for chunk in slices if chunk.sample)
        slots = np.array(sampling, dtype=np.intp)
        return Step(
            StepPlan(step_id, rows, slices, draft.admitted, released, preempted),
            running.decode_rows.sequences(slots[: len(rows)]),
            draft.sequences,
            slots,
            running.decode_rows.epochs[slots],
            draft.features(),
        )

    def _is_time_to_admit(self) -> bool:
        """Look at the queue every so many steps, and whenever nothing runs."""
        if self._num_steps_to_admission > 0 and len(self._running):
            self._num_steps_to_admission -= 1
            return False
        interval = self._config.admission_interval_steps
        self._num_steps_to_admission = interval if interval > 1 else 0
        return True

    def _displace(self, now: float) -> list[Sequence]:
        """Make room for requests that wait in a higher band than some that run."""
        running = self._running
        if not len(self._waiting) or not len(running):
            return []
        if not running.has_below(Band.PRIORITY):
            return []
        head = self._waiting.peek(now)
        if head is None or head.num_in_flight or not running.has_below(head.request.band):
            return []
        budget = self._parts.kv_budget
        if not running.is_full and (budget.surely_fits(head) or budget.fit(head) is not None):
            return []
        node = self._waiting.bands[head.request.band.name]
        num_wanted = min(node.num_waiting, _MAX_DISPLACING)
        hit = budget.find(head)
        num_blocks = head.table.blocks_missing(head.num_tokens) - len(hit)
        num_blocks += self._pool.count_idle(hit) + budget.reserve()
        victims = self._parts.preemption.displace(head.request.band, num_blocks, 1)
        if victims and num_wanted > 1:
            mean_blocks = node.waiting_tokens // (node.num_waiting * self._pool.block_size) + 1
            victims += self._parts.preemption.displace(
                head.request.band, num_blocks + (num_wanted - 1) * mean_blocks, num_wanted
            )
        return victims

    def _decode(self, slots: Slots, draft: _Draft) -> None:
        """Let those rows decode that may draw one more token."""
        known, rows = self._running.decode_rows, draft.rows
        slots = known.unpaused(slots)
        positions = known.num_tokens[slots] - 1
        blocks = np.full(len(slots), -1, dtype=np.intc)
        wants_block = np.flatnonzero(positions % self._pool.block_size == 0)
        if len(wants_block):
            sequences = known.sequences(slots[wants_block])
            blocks[wants_block] = [sequence.table.append_block() for sequence in sequences]
        known.num_tokens[slots] = positions + 2
        rows.slots.frombytes(slots.astype(np.intc).tobytes())
        rows.positions.frombytes(positions.tobytes())
        rows.new_block_ids.frombytes(blocks.tobytes())
        draft.decode_context_tokens += int(positions.sum())

    def _prefill(self, draft: _Draft, admits: bool, now: float) -> None:
        """Give online prefills their chunks, the ones under way and new ones by deadline."""
        room = self._max_num_tokens - draft.num_tokens
        under_way = [s for s in self._running.prefilling if s.request.band is not Band.BATCH]
        if room <= 0 or not (under_way or (admits and len(self._waiting))):
            return
        # The chunks that go on attend to what their prompts have so far.
        context = sum(sequence.num_computed for sequence in under_way)
        step = draft.features(prefill_context_tokens=context)
        draft.budget = self._parts.step_budget.prefill_tokens(step, room, now)
        under_way.sort(key=_urgency, reverse=True)
        head = self._next(draft, now) if admits else None
        while draft.budget and (under_way or head is not None):
            if under_way and (head is None or self._goes_on(under_way[-1], head[0])):
                sequence = under_way.pop()
                if draft.has_room_for(sequence):
                    self._slice(sequence, (), draft)
            else:
                assert head is not None
                # Prefills under way may have taken what it was to have of scored prompts.
                has_room = draft.has_room_for(head[0])
                if has_room:
                    self._admit(*head, draft, now)
                head = self._next(draft, now) if has_room else None

    def _goes_on(self, under_way: Sequence, head: Sequence) -> bool:
        """Tell whether a prefill under way goes before the next request, which may be due before.

        Another tenant's may go first only while it is no further ahead of its share: the prompt
        under way was charged for already, and a flood of older requests would keep it waiting.
        """
        if under_way.request.band != head.request.band:
            return under_way.request.band < head.request.band
        if _urgency(under_way) <= _urgency(head):
            return True
        counter = self._waiting.tenant_counter
        return counter(head) > counter(under_way)

    def _harvest(self, draft: _Draft, admits: bool, now: float) -> None:
        """Take work of the batch band along in what time, tokens and blocks are left."""
        running, budget = self._running, self._parts.step_budget
        under_way = [s for s in running.prefilling if s.request.band is Band.BATCH]
        waits = admits and not self._is_online_waiting()
        if not (running.batch_decodes or under_way or (waits and len(self._waiting))):
            return
        ready = self._ready_to_harvest(self._max_num_tokens - draft.num_tokens)
        context = int(running.decode_rows.num_tokens[ready].sum()) // max(1, len(ready))
        num_rows = budget.harvest_rows(draft.features(), len(ready), context, now)
        if not draft.num_tokens:
            num_rows = max(num_rows, min(1, len(ready)))
        self._decode(ready[:num_rows], draft)
        room = self._max_num_tokens - draft.num_tokens
        draft.budget = budget.harvest_tokens(draft.features(), room, now)
        if not draft.num_tokens:
            draft.budget = max(draft.budget, min(room, self._config.min_chunk_tokens))
        for sequence in under_way:
            if draft.budget and draft.has_room_for(sequence):
                self._slice(sequence, (), draft)
        while waits and (head := self._next(draft, now, harvests=True)) is not None:
            self._admit(*head, draft, now)

    def _ready_to_harvest(self, room: int) -> Slots:
        """List batch rows that may decode and have, or can be given, the block they need."""
        rows = self._running.decode_rows
        slots = rows.unpaused(rows.batch())
        wants = rows.wants_block(slots, self._pool.block_size)
        has_block = ~wants | (np.cumsum(wants) <= self._pool.num_free)
        return slots[has_block][:room]

    def _is_online_waiting(self) -> bool:
        bands = self._waiting.bands
        return any(node.num_waiting for node in bands.values() if node.band is not Band.BATCH)

    def _next(
        self, draft: _Draft, now: float, *, harvests: bool = False
    ) -> tuple[Sequence, list[int]] | None:
        """Find the request to admit now and its prefix hit, if one may be admitted at all."""
        parts = self._parts
        while draft.budget and not self._running.is_full:
            sequence = self._waiting.peek(now)
            # A token in flight must land first: the engine is handed all tokens on admission.
            if sequence is None or sequence.num_in_flight or not draft.has_room_for(sequence):
                return None
            if sequence.request.band is Band.BATCH and not (harvests and self._has_slot_to_lend()):
                return None
            if parts.drop_expired(sequence, now):
                continue
            hit = parts.kv_budget.fit(sequence)
            if hit is None:
                return self._bypass(sequence, now)
            if not parts.deferral.hold(sequence, len(hit)):
                return sequence, hit
            self._waiting.remove(sequence, now)
        return None

    def _has_slot_to_lend(self) -> bool:
        running = self._running
        return running.num_free_slots > self._config.batch_kv_headroom * running.max_num_rows

    def _bypass(self, passed: Sequence, now: float) -> tuple[Sequence, list[int]] | None:
        """Find a request behind one that does not fit, which is passed a few times at most."""
        if passed.num_bypassed >= self._config.max_bypasses:
            return None
        for sequence in self._waiting.others(_MAX_DISPLACING, now):
            hit = None if sequence.num_in_flight else self._parts.kv_budget.fit(sequence)
            if hit is not None:
                passed.num_bypassed += 1
                return sequence, hit
        return None

    def _admit(self, sequence: Sequence, hit: list[int], draft: _Draft, now: float) -> None:
        parts = self._parts
        self._waiting.remove(sequence, now)
        self._running.admit(sequence)
        sequence.table.take(hit)
        new_block_ids = sequence.table.allocate(sequence.num_tokens)
        assert new_block_ids is not None, "it has been found to fit"
        num_found = len(hit) * self._pool.block_size
        sequence.num_computed = num_found
        if not sequence.was_admitted:
            sequence.was_admitted = True
            sequence.num_cached_tokens = num_found
        parts.accounts.admit(sequence, now)
        sequence.is_guaranteed = self._waiting.has_waiting_above(sequence.request.band)
        parts.deferral.start(sequence, len(hit))
        self._running.kv_growth.admit(
            sequence.slot,
            sequence.num_tokens - num_found,
            parts.kv_budget.expected_len(sequence) - sequence.num_tokens,
        )
        draft.admitted.append(_new_sequence(sequence, hit))
        self._slice(sequence, new_block_ids, draft)

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
        draft.count(start, n_tokens)
        draft.sequences.append(sequence)
        draft.slices.append(SequenceSlice(sequence.slot, start, n_tokens, new_block_ids, samples))
        sequence.num_computed += n_tokens
        if samples:
            sequence.num_tokens += 1
            self._running.start_decoding(sequence)


class _Draft:
    """Gather the rows and slices of a step, and what its time depends on.

    Slices are added while there is `budget`, in tokens, those of scored prompts besides.
    """

    __slots__ = (
        "_attended_tokens",
        "_num_prefill_tokens",
        "_prefill_context_tokens",
        "admitted",
        "budget",
        "decode_context_tokens",
        "num_prompt_logprobs",
        "rows",
        "sequences",
        "slices",
    )

    def __init__(self, num_prompt_logprobs: int) -> None:
        self.budget = 0
        self.num_prompt_logprobs = num_prompt_logprobs
        self.rows = DecodeRows()
        self.admitted: list[NewSequence] = []
        self.slices: list[SequenceSlice] = []
        self.sequences: list[Sequence] = []
        self.decode_context_tokens = 0
        self._num_prefill_tokens = self._prefill_context_tokens = self._attended_tokens = 0

    @property
    def num_tokens(self) -> int:
        return len(self.rows) + self._num_prefill_tokens

    def has_room_for(self, sequence: Sequence) -> bool:
        return sequence.prompt_logprobs is None or self.num_prompt_logprobs > 0

    def count(self, start: int, num_tokens: int) -> None:
        """Note a slice of a prompt."""
        self.budget -= num_tokens
        self._num_prefill_tokens += num_tokens
        self._prefill_context_tokens += start
        self._attended_tokens += attended_tokens(start, num_tokens)

    def features(self, *, prefill_context_tokens: int = 0) -> StepFeatures:
        """Describe what the step has so far, and contexts of prefills that it is to have."""
        return StepFeatures(
            self._num_prefill_tokens,
            len(self.rows),
            self._prefill_context_tokens + prefill_context_tokens,
            self.decode_context_tokens,
            self._attended_tokens,
        )


def _urgency(sequence: Sequence) -> tuple[Band, float, int]:
    return sequence.request.band, sequence.deadline_s, sequence.ordinal


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
