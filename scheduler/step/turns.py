"""Whose prompt gets the next tokens of a step, of those under way and the next one of the queue.

Higher bands first; within a band the organisation that is least ahead of its share, within that the
tenant, and within a tenant deadlines decide. A prompt is charged whole when it is admitted, so one
of a hundred thousand tokens lets other tenants pass until they have had as much. But newcomers
might never end: every so many steps in which prompts under way were passed, the oldest of them goes
first. It has that step, and not a little of each, because a step that goes on with a long prompt
reads all that it has so far.
"""

from __future__ import annotations

import numpy as np

from scheduler.order import FairTree
from scheduler.request import Band
from scheduler.running import RunningSet, Slots
from scheduler.sequence import Sequence

# A tenth of the steps is for those who are passed, as for a band below others.
_MAX_PASSED_STEPS = 9

Turn = tuple[Band, tuple[float, float], float, int]


class Turns:
    """Know who is served before whom, one step after the other."""

    def __init__(self, tree: FairTree, running: RunningSet) -> None:
        self._tree = tree
        self._running = running
        self._num_passed_steps = 0

    def of(self, sequence: Sequence) -> Turn:
        """Rank a prompt; the least goes first."""
        counters = self._tree.share_counters(sequence)
        return sequence.request.band, counters, sequence.deadline_s, sequence.ordinal

    def in_turn(self) -> Slots:
        """List the slots of the prompts under way, but for the batch band, the first one last."""
        rows = self._running.prefilling_rows
        slots = rows.online()
        if len(slots) < 2:
            return slots
        members, tenants = self._tree.share_counters_of(
            self._running.decode_rows.accounts[slots],
            lambda index: self._running.find(slots.item(index)),
        )
        columns = rows.ordinals[slots], rows.deadlines_s[slots], tenants, members, rows.bands[slots]
        in_turn: Slots = slots[np.lexsort(columns)[::-1]]
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
