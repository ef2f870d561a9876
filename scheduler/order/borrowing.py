"""Who may go ahead of its turn to save a deadline.

Where the configuration lends, a tenant whose head must start now to be in time may go before the
one that is next, if it is then at most the loan ahead of its turn. Its counter pays it back. Two
tenants' service then differs by at most the loan more than their policy says. Only the few most
urgent tenants are asked, so that a chance to borrow may be missed when many are late.
"""

from __future__ import annotations

from scheduler.order.tree_node import Node
from scheduler.policies.base import Child, Key, Policy

_MAX_BORROWERS = 8


class MostUrgent(Policy):
    """Order tenants by when their heads must start at the latest, before those that are late."""

    def key(self, child: Child, now: float) -> Key:
        head = child.head(now)
        return (float(head.deadline_s < now), head.start_by_s)


def first_with_loan(node: Node, first: Child, loan: float, now: float) -> Child:
    """Find the child that goes before `first`, whose turn it is; that one itself if none does."""
    assert node.urgent is not None, "only a node that lends knows who is urgent"
    in_time = [
        child
        for child in node.urgent.least(_MAX_BORROWERS, now)
        if child.head(now).start_by_s <= now <= child.head(now).deadline_s
        and node.policy.lead(child, first) <= loan
    ]
    return min(in_time, key=lambda child: child.head(now).deadline_s, default=first)
