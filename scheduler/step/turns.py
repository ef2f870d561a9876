"""Whose prompt gets the next tokens of a step, of those under way and the next one of the queue.

Higher bands first; within a band the organisation that is least ahead of its share, within that the
tenant, and within a tenant deadlines decide. A prompt is charged whole when it is admitted, so one
of a hundred thousand tokens lets other tenants pass until they have had as much. Of those that were
promised their first token, and are at most the loan of the configuration ahead
(`scheduler.order.borrowing`), the one that is due first goes on: cut into turns, all of them would
be late. But newcomers might never end: every so many steps in which prompts under way were passed,
the oldest of them goes first. It has that step, and not a little of each, because a step that goes
on with a long prompt reads all that it has so far.

Of the batch band's rows, in a step that cannot carry them all, those of who is behind go first as
well.
"""

from __future__ import annotations

import numpy as np

from scheduler.order import NEVER, FairTree
from scheduler.request import Band
from scheduler.running import RunningSet, Slots
from scheduler.sequence import Sequence

# A tenth of the steps is for those who are passed, as for a band below others.
_MAX_PASSED_STEPS = 9


class Turns:
    """Know who is served before whom, one step after the other."""

    def __init__(self, tree: FairTree, running: RunningSet) -> None:
        self._tree = tree
        self._running = running
        self._loan = tree.config.borrow_tokens if tree.has_shares else 0.0
        self._num_passed_steps = 0

    def goes_before(self, one: Sequence, other: Sequence, now: float) -> bool:
        """Tell whether a prompt goes before another one."""
        mine, theirs = one.request, other.request
        if mine.band != theirs.band:
            return mine.band < theirs.band
        counters, others = self._tree.share_counters(one), self._tree.share_counters(other)
        ahead, behind = counters[0] - others[0], 0.0
        if mine.member == theirs.member:
            ahead = counters[1] - others[1]
        else:
            ahead, behind = self._beyond(one, ahead, now), self._beyond(other, -ahead, now)
        before = behind, other.deadline_s, other.ordinal
        return (ahead, one.deadline_s, one.ordinal) <= before

    def _beyond(self, sequence: Sequence, ahead: float, now: float) -> float:
        """Say how far a request is ahead of another, as far as no loan covers that."""
        is_lent = sequence.start_by_s < NEVER and now <= sequence.deadline_s
        if is_lent and ahead * sequence.request.member_weight <= self._loan:
            return 0.0
        return max(0.0, ahead)

    def in_turn(self, now: float) -> Slots:
        """List the slots of the prompts under way, but for the batch band, the first one last."""
        rows = self._running.prefilling_rows
        slots = rows.online()
        if len(slots) < 2:
            return slots
        members, tenants = self._tree.share_counters_of(
            self._running.decode_rows.accounts[slots],
            lambda index: self._running.find(slots.item(index)),
        )
        bands, deadlines_s = rows.bands[slots], rows.deadlines_s[slots]
        is_promised = rows.is_promised[slots] & (deadlines_s >= now)
        if self._loan and is_promised.any():
            least = np.full(len(Band), np.inf)
            np.minimum.at(least, bands, members)
            ahead = members - least[bands]
            is_lent = is_promised & (ahead * rows.weights[slots] <= self._loan)
            # Those of one organisation take turns as if nothing was lent.
            tenants = np.where(tenants == members, 0.0, tenants)
            members = np.where(is_lent, 0.0, ahead)
        columns = rows.ordinals[slots], deadlines_s, tenants, members, bands
        in_turn: Slots = slots[np.lexsort(columns)[::-1]]
        return in_turn

    def batch_in_turn(self, slots: Slots) -> Slots:
        """Order rows of the batch band by whose turn it is; those of a tenant as they are.

        Who is behind has all of its rows before the next: each step charges them, and so another
        is behind in the next one.
        """
        members, tenants = self._tree.share_counters_of(
            self._running.decode_rows.accounts[slots],
            lambda index: self._running.find(slots.item(index)),
        )
        in_turn: Slots = slots[np.lexsort((tenants, members))]
        return in_turn

    def pick_passed(self, under_way: list[int]) -> int | None:
        """Choose who goes first in this step for having been passed in others, if that is due."""
        if self._num_passed_steps < _MAX_PASSED_STEPS:
            return None
        ordinals = self._running.prefilling_rows.ordinals
        return min(under_way, key=ordinals.item, default=None)

    def note(self, num_passed: int) -> None:
        """Learn how many prompts under way got nothing of a step that had tokens to give."""
        self._num_passed_steps = self._num_passed_steps + 1 if num_passed else 0
