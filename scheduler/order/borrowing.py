"""Who may go ahead of its turn to save a deadline.

Where the configuration lends, tenants stand in the order of their heads' deadlines too
(`node.urgent`): the first in it that is at most the loan ahead of the one whose turn it is goes
next. By deadlines, and not by size: admission has told those that wait when they will be served.
Its counter pays it back. Two tenants' service then differs by at most the loan more than their
policy says. Who was promised nothing, or is late already, borrows nothing, and only the first few
are asked, so that a chance may be missed when many are far ahead. An organisation borrows for the
tenant of it that would go, which may have to borrow within it too.

Source: earliest eligible virtual deadline first (Stoica et al., RTSS 1996) picks among those whose
lag allows it in the same way; here the deadlines are real ones.
"""

from __future__ import annotations

from itertools import islice

from scheduler.order.deadlines import NEVER
from scheduler.order.tree_node import Node
from scheduler.policies.base import Child, Key, Policy
from scheduler.sequence import Sequence

_MAX_BORROWERS = 8


class Soonest(Policy):
    """Order children by when their heads are due, those that are late after the others.

    An organisation by the one of its tenants that is due first.
    """

    ranks_by_class = True

    def look(self, child: Child, now: float) -> tuple[Key, int]:
        soonest = _soonest(child, now)
        return (soonest.deadline_s,), int(soonest.start_by_s < now)

    def still_has(self, child: Child, ordinal: int, class_: int, now: float) -> bool:
        if type(child) is not Node or child.urgent is not None:
            return False
        head = child.head(now)
        return head.ordinal == ordinal and (head.start_by_s < now) == class_

    def key(self, child: Child, now: float) -> Key:
        return self.look(child, now)[0]

    def class_of(self, child: Child, now: float) -> int:
        return self.look(child, now)[1]

    def rank(self, child: Child, now: float) -> Key:
        return (float(self.class_of(child, now)), *self.key(child, now))


def first_with_loan(node: Node, first: Child, loan: float, now: float) -> Child:
    """Find the child that goes before `first`, whose turn it is; that one itself if none does."""
    assert node.urgent is not None, "only a node that lends knows who is urgent"
    for child in islice(node.urgent.in_turn(now), _MAX_BORROWERS):
        if child is first or not _is_saved(_soonest(child, now), now):
            # Nor is anybody behind it: who is late, or was promised nothing, is last.
            return first
        is_saved = _is_saved(_head_with_loan(child, loan, now), now)
        if is_saved and node.policy.lead(child, first) <= loan:
            return child
    return first


def _is_saved(head: Sequence, now: float) -> bool:
    """Tell whether a request was promised something that it has if it is next."""
    return now <= head.start_by_s < NEVER


def _soonest(child: Child, now: float) -> Sequence:
    """Find the request that is due first of a tenant's head, or of those of an organisation's."""
    if not isinstance(child, Node) or child.urgent is None:
        return child.head(now)
    soonest = child.urgent.first(now)
    assert soonest is not None, "only who waits is asked"
    return soonest.head(now)


def _head_with_loan(child: Child, loan: float, now: float) -> Sequence:
    """Find the request that would be next if it were the child's turn."""
    if not isinstance(child, Node) or child.urgent is None:
        return child.head(now)
    first = child.order.first(now)
    assert first is not None, "only who waits is asked"
    return first_with_loan(child, first, loan, now).head(now)
