"""Builds the plan of one step.

In order: all online rows that decode; then prefills, those under way and new ones from the tree
by deadline, as many tokens as the tightest promise leaves time for; then rows and prefills of the
batch band into what is left. All within the engine's token budget and its rows. Who of those that
wait is let in is said by `scheduler.step.intake`, who is sent back by `scheduler.step.preemption`.

A sequence gets the blocks for all its known tokens when it is admitted, though its chunks may
take several steps: prefills can then never block each other, and only decoding can run out. What
the newest token of a row is need not be known: the engine has it on the device.
"""

from __future__ import annotations

import numpy as np

from engine.contract import EngineInfo
from engine.kv.block_pool import BlockPool
from scheduler.config import SchedulerConfig
from scheduler.learn import Lengths, StepModel
from scheduler.lifecycle import Lifecycle
from scheduler.request import Band
from scheduler.running import Slots
from scheduler.sequence import Sequence
from scheduler.step.budget import StepBudget
from scheduler.step.displacement import Displacement
from scheduler.step.draft import Draft, Step
from scheduler.step.intake import Intake
from scheduler.step.kv_budget import KvBudget
from scheduler.step.limits import StepLimits
from scheduler.step.preemption import Preemption


class Composer:
    """Compose steps for one engine from what runs and what waits."""

    def __init__(
        self,
        config: SchedulerConfig,
        info: EngineInfo,
        pool: BlockPool,
        limits: StepLimits,
        lifecycle: Lifecycle,
        step_model: StepModel,
        lengths: Lengths,
    ) -> None:
        running, waiting = lifecycle.running, lifecycle.waiting
        self._config = config.composer
        self._info = info
        self._pool = pool
        self._limits = limits
        self._lifecycle = lifecycle
        self._waiting = waiting
        self._running = running
        self._step_budget = StepBudget(config.composer, running.pace, step_model)
        self._kv_budget = KvBudget(config.composer, info, pool, running, lengths)
        self._preemption = Preemption(config.preemption, pool, running, waiting.tenant_counter)
        self._displacement = Displacement(pool, waiting, running, self._kv_budget, self._preemption)
        self._intake = Intake(config.composer, self._kv_budget, lifecycle)
        self._num_steps_to_admission = 0

    def compose(self, step_id: int, now: float) -> Step | None:
        """Plan the next step, or return None where there is nothing to compute.

        What was released stays noted for the next plan that is not empty.
        """
        running = self._running
        victims = self._preemption.make_room()
        displaced = [] if victims else self._displacement.make_way(now)
        for victim in (*victims, *displaced):
            self._lifecycle.requeue(victim, now)
        draft = Draft(self._info.max_num_prompt_logprobs)
        # A victim must not take back at once what it has just given.
        admits = not victims and self._is_time_to_admit()
        if not self._config.prefill_first:
            self._decode(running.decode_rows.online(), draft)
        self._prefill(draft, admits, now)
        if self._config.prefill_first and not draft.slices:
            self._decode(running.decode_rows.online(), draft)
        self._harvest(draft, admits, now)
        if draft.num_tokens:
            running.num_steps += 1
            return draft.finish(step_id, running)
        if not admits and self._num_steps_to_admission and len(self._waiting):
            # Rows run, but none may draw: looking at the queue only now and then is for others.
            self._num_steps_to_admission = 0
            return self.compose(step_id, now)
        return None

    def _is_time_to_admit(self) -> bool:
        """Look at the queue every so many steps, and whenever nothing runs."""
        if self._num_steps_to_admission > 0 and len(self._running):
            self._num_steps_to_admission -= 1
            return False
        interval = self._config.admission_interval_steps
        self._num_steps_to_admission = interval if interval > 1 else 0
        return True

    def _num_tokens_left(self, draft: Draft) -> int:
        limit = self._limits.max_num_tokens
        return min(limit, self._config.max_num_batched_tokens or limit) - draft.num_tokens

    def _decode(self, slots: Slots, draft: Draft) -> None:
        """Let those rows decode that may draw one more token."""
        rows = self._running.decode_rows
        slots = rows.unpaused(slots)
        positions = rows.num_tokens[slots] - 1
        block_ids = np.full(len(slots), -1, dtype=np.intc)
        wants_block = np.flatnonzero(positions % self._pool.block_size == 0)
        if len(wants_block):
            sequences = rows.sequences(slots[wants_block])
            block_ids[wants_block] = [sequence.table.append_block() for sequence in sequences]
        rows.num_tokens[slots] = positions + 2
        draft.decode(slots, positions, block_ids)

    def _prefill(self, draft: Draft, admits: bool, now: float) -> None:
        """Give online prefills their chunks, the ones under way and new ones by deadline."""
        room = self._num_tokens_left(draft)
        under_way = [s for s in self._running.prefilling if s.request.band is not Band.BATCH]
        if room <= 0 or not (under_way or (admits and len(self._waiting))):
            return
        # The chunks that go on attend to what their prompts have so far.
        context = sum(sequence.num_computed for sequence in under_way)
        step = draft.features(prefill_context_tokens=context)
        draft.budget = self._step_budget.prefill_tokens(step, room, now)
        under_way.sort(key=_urgency, reverse=True)
        head = self._intake.next(draft, now) if admits else None
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
                head = self._intake.next(draft, now) if has_room else None

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

    def _harvest(self, draft: Draft, admits: bool, now: float) -> None:
        """Take work of the batch band along in what time, tokens and blocks are left."""
        running, budget = self._running, self._step_budget
        under_way = [s for s in running.prefilling if s.request.band is Band.BATCH]
        waits = admits and not self._intake.is_online_waiting()
        if not (running.batch_decodes or under_way or (waits and len(self._waiting))):
            return
        ready = self._ready_to_harvest(self._num_tokens_left(draft))
        context = int(running.decode_rows.num_tokens[ready].sum()) // max(1, len(ready))
        num_rows = budget.harvest_rows(draft.features(), len(ready), context, now)
        if not draft.num_tokens:
            num_rows = max(num_rows, min(1, len(ready)))
        self._decode(ready[:num_rows], draft)
        room = self._num_tokens_left(draft)
        draft.budget = budget.harvest_tokens(draft.features(), room, now)
        if not draft.num_tokens:
            draft.budget = max(draft.budget, min(room, self._config.min_chunk_tokens))
        for sequence in under_way:
            if draft.budget and draft.has_room_for(sequence):
                self._slice(sequence, (), draft)
        while waits and (head := self._intake.next(draft, now, harvests=True)) is not None:
            self._admit(*head, draft, now)

    def _ready_to_harvest(self, room: int) -> Slots:
        """List batch rows that may decode and have, or can be given, the block they need."""
        rows = self._running.decode_rows
        slots = rows.unpaused(rows.batch())
        wants = rows.wants_block(slots, self._pool.block_size)
        has_block = ~wants | (np.cumsum(wants) <= self._pool.num_free)
        return slots[has_block][:room]

    def _admit(self, sequence: Sequence, hit: list[int], draft: Draft, now: float) -> None:
        expected_len = self._kv_budget.expected_len(sequence)
        new_block_ids = self._lifecycle.admit(sequence, hit, expected_len, now)
        draft.admit(sequence, hit)
        self._slice(sequence, new_block_ids, draft)

    def _slice(
        self, sequence: Sequence, new_block_ids: list[int] | tuple[()], draft: Draft
    ) -> None:
        """Plan the next chunk of a prefill; its last one draws a token."""
        assert sequence.num_tokens < sequence.pause_at, "a paused sequence is never admitted"
        if draft.slice(sequence, new_block_ids):
            sequence.num_tokens += 1
            self._running.start_decoding(sequence)


def _urgency(sequence: Sequence) -> tuple[Band, float, int]:
    return sequence.request.band, sequence.deadline_s, sequence.ordinal
