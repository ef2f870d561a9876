"""Who of those that wait may be given a slot in this step.

The first of the tree, if it fits, and nobody where it does not: passing it by would let small
requests of others keep a large one out for ever, whatever its share. `max_bypasses` is how often
one may be passed all the same. The highest band passes any below it that does not fit: such a one
is next for the share that its band is owed. On the way those who come too late are ended, and those
whose prompt another is computing are held.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from scheduler.config import ComposerConfig
from scheduler.facts import WaitCause
from scheduler.lifecycle import Lifecycle
from scheduler.request import Band
from scheduler.sequence import Sequence
from scheduler.step.draft import Draft
from scheduler.step.kv_budget import KvBudget
from scheduler.step.passing import Passing

_MAX_PASSING = 8

# A request and the blocks of its prefix that are in the cache.
Head = tuple[Sequence, list[int]]


class Intake:
    """Look at the queue for one step after the other.

    `stopped_by` says why the last look has let nobody in.
    """

    def __init__(
        self, config: ComposerConfig, kv_budget: KvBudget, passing: Passing, lifecycle: Lifecycle
    ) -> None:
        self._config = config
        self._kv_budget = kv_budget
        self._passing = passing
        self._lifecycle = lifecycle
        self._waiting = lifecycle.waiting
        self._running = lifecycle.running
        self.stopped_by = WaitCause.STEP
        # What the last request that did not fit was short of.
        self._lacking = WaitCause.BLOCKS

    def is_online_waiting(self) -> bool:
        """Tell whether a request that is not of the batch band waits."""
        bands = self._waiting.bands
        return any(node.num_waiting for node in bands.values() if node.band is not Band.BATCH)

    def next(self, draft: Draft, now: float, *, harvests: bool = False) -> Head | None:
        """Find the request to admit now, if one may be admitted at all.

        One of the batch band only if the step `harvests`.
        """
        lifecycle = self._lifecycle
        while draft.budget and not self._running.is_full:
            sequence = self._waiting.peek(now)
            if sequence is None:
                self.stopped_by = WaitCause.STEP
                return None
            if not self._may_begin(sequence, draft, harvests):
                self.stopped_by = self._why_not_now(sequence, draft)
                return None
            if lifecycle.is_late(sequence, now):
                if not lifecycle.drop(sequence, now):
                    self.stopped_by = WaitCause.STEP
                    return None
                continue
            hit = self._fit(sequence)
            if hit is None:
                self.stopped_by = self._lacking
                instead = self._instead_of(sequence, draft, now, harvests)
                instead = instead or self._urgent(sequence, draft, now)
                if instead is None:
                    return self._bypass(sequence, now, harvests)
                sequence, hit = instead
            shared = lifecycle.computes_prompt(sequence, len(hit))
            if shared is None:
                return sequence, hit
            if not lifecycle.hold(sequence, shared, now):
                self.stopped_by = WaitCause.STEP
                return self._beside_followers(sequence.request.band, now, harvests)
        if not len(self._waiting):
            self.stopped_by = WaitCause.STEP
        else:
            self.stopped_by = WaitCause.SLOTS if draft.budget else WaitCause.PROMPTS
        return None

    def _why_not_now(self, sequence: Sequence, draft: Draft) -> WaitCause:
        """Say why a request may not join this step, slots and blocks aside."""
        if sequence.num_in_flight:
            return WaitCause.STEP
        return WaitCause.BATCH if draft.has_room_for(sequence) else WaitCause.PROMPTS

    def _instead_of(
        self, passed: Sequence, draft: Draft, now: float, harvests: bool
    ) -> Head | None:
        """Find one that may take the headroom, where the next request does not fit beside it."""
        sequence = self._passing.next(now)
        if sequence is None or self._lifecycle.is_late(sequence, now):
            return None
        if not self._may_begin(sequence, draft, harvests):
            return None
        # The next one itself, where nobody has a claim to what it was to leave.
        hit = self._fit(sequence, keeps=sequence is not passed)
        return None if hit is None else (sequence, hit)

    def _urgent(self, passed: Sequence, draft: Draft, now: float) -> Head | None:
        """Find one of the highest band that fits, where the next request is of a lower one."""
        heads = self._waiting.heads_above(passed.request.band, now)
        if not heads or heads[0].request.band is not Band.PRIORITY:
            return None
        sequence = heads[0]
        is_late = self._lifecycle.is_late(sequence, now)
        if is_late or not self._may_begin(sequence, draft, harvests=False):
            return None
        hit = self._fit(sequence)
        return None if hit is None else (sequence, hit)

    def _may_begin(self, sequence: Sequence, draft: Draft, harvests: bool) -> bool:
        """Tell whether a request may join this step, slots and blocks aside."""
        # A token in flight must land first: the engine is handed all tokens on admission.
        if sequence.num_in_flight or not draft.has_room_for(sequence):
            return False
        return self._may_enter(sequence, harvests)

    def _may_enter(self, sequence: Sequence, harvests: bool) -> bool:
        """Tell whether work of this band is let in now; the batch band leaves some slots free."""
        if sequence.request.band is not Band.BATCH:
            return True
        running = self._running
        num_kept = self._config.batch_kv_headroom * running.max_num_rows
        return harvests and running.num_free_slots > num_kept

    def _fit(self, sequence: Sequence, *, keeps: bool = True) -> list[int] | None:
        """Find a slot and blocks for a request, as far as it may have them; returns its hit."""
        running = self._running
        self._lacking = WaitCause.SLOTS
        if running.is_full:
            return None
        num_kept = self._kv_budget.headroom.slots(sequence) if keeps else 0
        if running.num_free_slots + running.num_lent_slots(sequence) <= num_kept:
            return None
        self._lacking = WaitCause.BLOCKS
        return self._kv_budget.fit(sequence, keeps=keeps)

    def _bypass(self, passed: Sequence, now: float, harvests: bool) -> Head | None:
        """Find a request behind one that does not fit, which is passed a few times at most."""
        if passed.num_bypassed >= self._config.max_bypasses:
            return None
        others = self._waiting.others(_MAX_PASSING, now)
        behind = next(self._fitting(others, harvests), None)
        passed.num_bypassed += behind is not None
        return behind

    def _beside_followers(self, band: Band, now: float, harvests: bool) -> Head | None:
        """Find a request behind one that is to be held, where the step has held as many as it may.

        Thousands may wait for one prompt: others are not to wait for all of them to be held, in
        their `band` or below it.
        """
        others = self._waiting.others(_MAX_PASSING, now)
        for some in (others, self._waiting.heads_below(band, now)):
            for sequence, hit in self._fitting(some, harvests):
                if self._lifecycle.computes_prompt(sequence, len(hit)) is None:
                    return sequence, hit
        return None

    def _fitting(self, others: Iterable[Sequence], harvests: bool) -> Iterator[Head]:
        """Go through those that fit of the ones behind the next request."""
        for sequence in others:
            # Where one policy orders all bands, those behind may be of another one.
            if sequence.num_in_flight or not self._may_enter(sequence, harvests):
                continue
            hit = self._fit(sequence)
            if hit is not None:
                yield sequence, hit
