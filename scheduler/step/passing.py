"""Whose turn it is to take the headroom, where the next request may not.

A tenant above its share waits until more than the headroom is free, and does not keep others from
what is meant for them: its turn passes to the first one behind it, in the tree's order, that may
take it; before those to higher bands, where a lower one is next for being owed its share. Nobody is
charged for that, and it goes on no longer than until they have their shares as well.

What is held is not what was served: short requests hold less for as many tokens. Who would go too
far ahead by passing has no claim to the headroom, and where only such wait it is for the first.
"""

from __future__ import annotations

import math
from itertools import chain

from scheduler.order import FairTree
from scheduler.sequence import Sequence
from scheduler.step.kv_budget import KvBudget

_MAX_PASSED = 8
# In weighted tokens: a few prompts, so that service differs by no more than that besides.
_MAX_LEAD = 4_096.0


class Passing:
    """Find who is next of those that may take the headroom."""

    def __init__(self, waiting: FairTree, kv_budget: KvBudget) -> None:
        self._waiting = waiting
        self._kv_budget = kv_budget
        # Who is next, and for which state it was found: a step asks before and after its decodes.
        self._next: Sequence | None = None
        self._as_of = (math.nan, 0, 0)

    def next(self, now: float) -> Sequence | None:
        """Return the next request, or the first behind it that is not kept out where it is."""
        as_of = now, self._waiting.version, self._kv_budget.version
        if as_of != self._as_of:
            self._as_of, self._next = as_of, self._find(now)
        return self._next

    def _find(self, now: float) -> Sequence | None:
        head = self._waiting.peek(now)
        if head is None or not self._kv_budget.is_kept_out(head):
            return head
        is_one_let_in = False
        heads_above = self._waiting.heads_above(head.request.band, now)
        for other in chain(heads_above, self._waiting.others(_MAX_PASSED, now)):
            if self._kv_budget.is_kept_out(other):
                continue
            if self._waiting.lead(other, head) <= _MAX_LEAD:
                return other
            is_one_let_in = True
        return head if is_one_let_in else None
