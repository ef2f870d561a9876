"""Builds the plan of one step.

In order: the online rows that decode, all or those whose turn it is
(`scheduler.step.mask_turns`, `scheduler.step.decode_shares`); then prefills, those under way and
new ones from the tree, as many tokens as the tightest promise leaves time for; then rows and
prefills of the batch band into what is left. All within the engine's token budget and its rows.
Whose prompt goes first is said by `scheduler.step.turns`, who of those that wait is let in by
`scheduler.step.intake`, who is sent back by `scheduler.step.preemption`.

A sequence gets the blocks for all its known tokens when it is admitted, though its chunks may
take several steps: prefills can then never block each other, and only decoding can run out. What
the newest token of a row is need not be known: the engine has it on the device.
"""

from __future__ import annotations

import math

import numpy as np

from engine.contract import EngineInfo, StepResult
from engine.kv.block_pool import BlockPool
from engine.step_cost import StepFeatures
from scheduler.config import SchedulerConfig
from scheduler.facts import WaitCause
from scheduler.learn import Lengths, StepModel
from scheduler.lifecycle import Lifecycle
from scheduler.request import Band
from scheduler.running import PLACE_BITS, Slots
from scheduler.sequence import Sequence
from scheduler.step.budget import StepBudget
from scheduler.step.decode_shares import DecodeShares
from scheduler.step.displacement import Displacement
from scheduler.step.draft import Draft, Step
from scheduler.step.first_tokens import FirstTokens
from scheduler.step.giving_way import GivingWay
from scheduler.step.harvest import Harvest
from scheduler.step.intake import Intake
from scheduler.step.kv_budget import KvBudget
from scheduler.step.limits import StepLimits
from scheduler.step.long_prompts import LongPrompts
from scheduler.step.mask_turns import MaskTurns
from scheduler.step.passing import Passing
from scheduler.step.preemption import Preemption
from scheduler.step.prompt_shares import PromptShares
from scheduler.step.turns import Turns

# Prompts that more steps than these are needed for come faster than they are computed.
_NUM_STEPS_BEHIND = 8


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
        self.first_tokens = FirstTokens(
            config, info.depth, self._step_budget, running.in_flight_times, step_model
        )
        self._harvest = Harvest(
            config.composer,
            self._step_budget,
            self.first_tokens,
            config.fairness.max_throughput_loss,
        )
        self._kv_budget = KvBudget(config.composer, info, pool, running, lengths)
        self._preemption = Preemption(config.preemption, pool, running, waiting.share_counters)
        passing = Passing(waiting, self._kv_budget)
        self._displacement = Displacement(
            pool, waiting, running, self._kv_budget, self._preemption, passing
        )
        self._intake = Intake(config.composer, self._kv_budget, passing, lifecycle)
        self._turns = Turns(waiting, running)
        self._long_prompts = LongPrompts(
            config.fairness.max_throughput_loss, running, waiting, step_model
        )
        self._mask_turns = MaskTurns(running, waiting)
        self._shares = DecodeShares(config, info.depth, running, waiting, step_model)
        self._prompt_shares = PromptShares(
            config.fairness, running, waiting, step_model, self._shares.prefills
        )
        self._giving_way = GivingWay(config.composer.harvest_pause_s, running)
        self._num_steps_to_admission = 0

    def compose(self, step_id: int, now: float) -> Step | None:
        """Plan the next step, or return None where there is nothing to compute.

        What was released stays noted for the next plan that is not empty.
        """
        running = self._running
        if not len(running) and not len(self._waiting):
            self._lifecycle.wait_clock.note(now, WaitCause.STEP, WaitCause.STEP)
            return None
        self._kv_budget.begin(now)
        victims = self._preemption.make_room()
        displaced = [] if victims else self._displacement.make_way(now)
        for victim in (*victims, *displaced):
            self._lifecycle.requeue(victim, now)
        draft = Draft(self._info.max_num_prompt_logprobs)
        self._step_budget.first_s = math.inf
        self._mask_turns.begin()
        # A victim must not take back at once what it has just given.
        admits = not victims and self._is_time_to_admit()
        self._intake.stopped_by = WaitCause.BLOCKS if victims else WaitCause.INTERVAL
        if not self._config.prefill_first:
            self._decode_online(draft, now)
        self._prefill(draft, admits, now)
        if self._config.prefill_first and not draft.slices:
            self._decode_online(draft, now)
        kept_by = self._intake.stopped_by
        if admits:
            self._intake.stopped_by = WaitCause.BATCH if len(self._waiting) else WaitCause.STEP
        self._take_batch_work(draft, admits, now)
        # Who is not of the batch band has not to wait for that.
        kept_by = WaitCause.STEP if kept_by is WaitCause.BATCH else kept_by
        self._lifecycle.wait_clock.note(now, kept_by, self._intake.stopped_by)
        if draft.num_tokens:
            running.num_steps += 1
            step = draft.finish(step_id, running)
            self._shares.note(step, now, is_behind=self._is_behind(step, kept_by))
            return step
        if not admits and self._num_steps_to_admission and len(self._waiting):
            # Rows run, but none may draw: looking at the queue only now and then is for others.
            self._num_steps_to_admission = 0
            return self.compose(step_id, now)
        return None

    def note(self, step: Step, result: StepResult) -> None:
        """Learn from what a step computed, before its rows are taken in."""
        self._mask_turns.note(step, result)

    def _is_behind(self, step: Step, kept_by: WaitCause) -> bool:
        """Tell whether more prompts are there than a few steps like this one compute."""
        if kept_by is WaitCause.PROMPTS or not step.slices:
            return bool(step.slices)
        num_left = self._running.prefilling_rows.num_left()
        return num_left > _NUM_STEPS_BEHIND * step.features.num_prefill_tokens

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

    def _decode_online(self, draft: Draft, now: float) -> None:
        """Let those rows decode that may draw one more token, unless they sit out."""
        rows = self._running.decode_rows
        slots = self._mask_turns.choose(rows.unpaused(rows.online()))
        self._decode(self._shares.choose(slots, now), draft)
        self._step_budget.kept_s = self._shares.kept_s

    def _decode(self, slots: Slots, draft: Draft) -> None:
        """Let rows decode that may draw one more token."""
        if not len(slots):
            return
        rows = self._running.decode_rows
        positions = rows.num_tokens[slots] - 1
        block_ids = np.full(len(slots), -1, dtype=np.intc)
        wants_block = (positions % self._pool.block_size == 0).nonzero()[0]
        if len(wants_block):
            sequences = rows.sequences(slots[wants_block])
            block_ids[wants_block] = [sequence.table.append_block() for sequence in sequences]
        rows.num_tokens[slots] = positions + 2
        draft.decode(slots, positions, block_ids)

    def _prefill(self, draft: Draft, admits: bool, now: float) -> None:
        """Give online prefills their chunks, the ones under way and new ones in turn."""
        room = self._num_tokens_left(draft)
        if admits:
            self._intake.stopped_by = WaitCause.PROMPTS if room <= 0 else WaitCause.STEP
        if room <= 0:
            return
        turns, long_prompts, running = self._turns, self._long_prompts, self._running
        slots = turns.in_turn(now)
        under_way: list[int] = slots.tolist()
        if not (under_way or (admits and len(self._waiting))):
            return
        resting = self._rest(under_way, slots, room, draft)
        # The chunks that go on attend to what their prompts have so far.
        context = int(running.prefilling_rows.num_computed[slots].sum())
        context -= sum(sequence.num_computed for sequence in resting)
        step = draft.features(prefill_context_tokens=context)
        draft.budget = self._step_budget.prefill_tokens(step, room, now)
        first = running.find(under_way[-1]) if under_way else self._waiting.peek(now)
        band = Band.DUE if first is None else first.request.band
        draft.budget = self.first_tokens.begin(step, draft.budget, band, now)
        draft.budget = self._fair_budget(under_way, step, draft, now)
        passed = turns.pick_passed(under_way) if long_prompts.due is None else long_prompts.due
        if passed is not None and draft.has_room_for(running.find(passed)):
            under_way.remove(passed)
            self._slice(running.find(passed), (), draft)
        head = self._intake.next(draft, now) if admits else None
        if head is not None and head[0] is long_prompts.aside and not self._head_rests(head, draft):
            self._admit(*head, draft, now)
            head = self._intake.next(draft, now)
        while draft.budget and (under_way or head is not None):
            sequence = running.find(under_way[-1]) if under_way else None
            if sequence is not None and (head is None or self._goes_on(sequence, head[0], now)):
                under_way.pop()
                if draft.has_room_for(sequence):
                    self._slice(sequence, (), draft)
            else:
                assert head is not None
                # Prefills under way may have taken what it was to have of scored prompts.
                has_room = draft.has_room_for(head[0]) and not self._head_rests(head, draft)
                if has_room:
                    self._admit(*head, draft, now)
                head = self._intake.next(draft, now) if has_room else None
                if not has_room:
                    self._intake.stopped_by = WaitCause.PROMPTS
        if head is not None:
            self._intake.stopped_by = WaitCause.PROMPTS
        draft.is_full = not (draft.budget or long_prompts.gone is not None)
        if resting and not draft.num_tokens:
            self._slice(resting[0], (), draft)
        long_prompts.note(draft.features())
        turns.note(0 if passed is not None else len(under_way))

    def _fair_budget(
        self, under_way: list[int], step: StepFeatures, draft: Draft, now: float
    ) -> int:
        """Say how many prompt tokens of the budget are fair to those whose rows run in the step."""
        least, gone = self._config.min_chunk_tokens, self._long_prompts.gone
        if gone is not None:
            # How much of it a step has is weighed with how many it sits out.
            least = max(least, gone.num_tokens - gone.num_computed)
        room, shares = draft.budget, self._prompt_shares
        if room <= least or not shares.are_kept:
            return room
        prompts = [self._running.find(slot) for slot in under_way]
        head = self._waiting.peek(now)
        decoding = np.array(draft.rows.slots, dtype=np.intp)
        return max(least, shares.num_tokens(prompts, head, decoding, step, room, now))

    def _goes_on(self, sequence: Sequence, head: Sequence, now: float) -> bool:
        """Tell whether a prompt under way goes before the next request.

        One of a lower band whose share is owed may be next: it is not to hide a higher one.
        """
        if not self._turns.goes_before(sequence, head, now):
            return False
        hidden = self._waiting.heads_above(head.request.band, now)
        return not hidden or self._turns.goes_before(sequence, hidden[0], now)

    def _rest(self, under_way: list[int], slots: Slots, room: int, draft: Draft) -> list[Sequence]:
        """Take those out of the prompts under way that sit this step out; returns them."""
        long_prompts, find = self._long_prompts, self._running.find
        long_prompts.begin()
        resting: list[Sequence] = []
        # Who has one that rests has more behind it: these are not weighed, as there may be many.
        having: set[tuple[str, Band]] = set()
        step = draft.features()
        for place in reversed(long_prompts.find_long(slots, room, step)):
            sequence, first = find(under_way[place]), find(under_way[-1])
            whose = sequence.request.tenant_id, sequence.request.band
            goes_first = first.request.tenant_id == sequence.request.tenant_id
            if whose in having or long_prompts.rests(sequence, room, goes_first=goes_first):
                having.add(whose)
                resting.append(sequence)
                del under_way[place]
        return resting

    def _head_rests(self, head: tuple[Sequence, list[int]], draft: Draft) -> bool:
        sequence, hit = head
        context, room = len(hit) * self._pool.block_size, draft.budget
        long_prompts = self._long_prompts
        if not (draft.num_tokens and context):
            return False
        num_tokens = min(room, sequence.num_tokens - context)
        step = draft.features()
        if not long_prompts.are_long([num_tokens], [context], step)[0]:
            return False
        beside = step if step.num_prefill_tokens else None
        return long_prompts.rests(sequence, room, context=context, goes_first=True, beside=beside)

    def _take_batch_work(self, draft: Draft, admits: bool, now: float) -> None:
        """Take work of the batch band along in what time, tokens and blocks are left."""
        running = self._running
        under_way = [s for s in running.below(Band.DUE) if s in running.prefilling]
        waits = admits and not self._intake.is_online_waiting()
        if not (running.batch_decodes or under_way or (waits and len(self._waiting))):
            return
        if self._giving_way.is_due(self._waiting.peek(now), now) and draft.num_tokens:
            return
        num_tokens = draft.num_tokens
        self._take_along(under_way, draft, now, admits=waits)
        self._harvest.note(took_any=draft.num_tokens > num_tokens)

    def _take_along(
        self, under_way: list[Sequence], draft: Draft, now: float, *, admits: bool
    ) -> None:
        """Decode batch rows, go on with prompts of them, and begin others if it `admits` any."""
        self._harvest.begin(draft.features(), now)
        ready = self._rows_to_harvest(draft)
        ready = self._mask_turns.choose_batch(ready, is_alone=not draft.num_tokens)
        self._decode(ready, draft)
        running = self._running
        running.decode_rows.turns[ready] = running.num_steps << PLACE_BITS
        draft.budget = self._harvest_tokens(draft, now)
        for sequence in under_way:
            if draft.budget and draft.has_room_for(sequence):
                draft.budget = self._harvest_tokens(draft, now, sequence, sequence.num_computed)
                if draft.budget:
                    self._slice(sequence, (), draft)
                draft.budget = self._harvest_tokens(draft, now)
        if not draft.budget:
            return
        while admits and (head := self._intake.next(draft, now, harvests=True)) is not None:
            context = len(head[1]) * self._pool.block_size
            draft.budget = self._harvest_tokens(draft, now, head[0], context)
            if not draft.budget:
                return
            self._admit(*head, draft, now)
            draft.budget = self._harvest_tokens(draft, now)

    def _harvest_tokens(
        self, draft: Draft, now: float, sequence: Sequence | None = None, context: int = 0
    ) -> int:
        """Grant tokens to a prompt of the batch band that has `context` by now, or to any."""
        room = self._num_tokens_left(draft)
        if sequence is not None:
            room = min(room, sequence.num_tokens - context)
        return self._harvest.prompt_tokens(draft.features(), context, room, now)

    def _rows_to_harvest(self, draft: Draft) -> Slots:
        """Choose batch rows for a step: by whose turn it is, where it cannot carry all."""
        harvest, num_tokens = self._harvest, self._running.decode_rows.num_tokens
        beside = draft.features()
        ready = self._ready_to_harvest(self._num_tokens_left(draft))
        num_rows = harvest.num_rows(beside, num_tokens[ready])
        if num_rows < len(ready):
            ready = self._turns.batch_in_turn(ready)
            num_rows = harvest.num_rows(beside, num_tokens[ready])
        if not draft.num_tokens:
            return ready[: max(num_rows, 1)]
        if not num_rows and len(ready):
            # A row that no step beside others has room for keeps nobody out.
            ready = ready[harvest.may_ever_run(beside, num_tokens[ready])]
            num_rows = harvest.num_rows(beside, num_tokens[ready])
        return ready[:num_rows]

    def _ready_to_harvest(self, room: int) -> Slots:
        """List batch rows that may decode and have, or can be given, the block they need."""
        rows = self._running.decode_rows
        slots = rows.unpaused(rows.batch())
        wants = rows.wants_block(slots, self._pool.block_size)
        has_block = ~wants | (np.cumsum(wants) <= self._pool.num_free)
        return slots[has_block][:room]

    def _admit(self, sequence: Sequence, hit: list[int], draft: Draft, now: float) -> None:
        expected_len = self._kv_budget.expected_len(sequence)
        is_pinned = self._preemption.is_pinned(sequence)
        new_block_ids = self._lifecycle.admit(sequence, hit, expected_len, now, is_pinned=is_pinned)
        draft.admit(sequence, hit)
        self._slice(sequence, new_block_ids, draft)

    def _slice(
        self, sequence: Sequence, new_block_ids: list[int] | tuple[()], draft: Draft
    ) -> None:
        """Plan the next chunk of a prefill; its last one draws a token."""
        assert sequence.num_tokens < sequence.pause_at, "a paused sequence is never admitted"
        sequence.course.note_chunk()
        is_last = draft.slice(sequence, new_block_ids)
        if sequence is self._long_prompts.gone:
            draft.budget = self._long_prompts.room_beside(draft.features(), draft.budget)
        if is_last:
            features = draft.features()
            draft.budget = self.first_tokens.room_beside(sequence, features, draft.budget)
            sequence.num_tokens += 1
            self._running.start_decoding(sequence)
        else:
            self._running.prefilling_rows.advance(sequence)
