"""What a policy is: it orders the children of one node of the fair tree, and is told their cost.

A child is a request, or a node with requests below it (a key, a tenant, a band), so each policy
can be used at any level. A policy is pure: no clock (`now` is an argument, in seconds), no I/O,
no queue. What it remembers of a child it keeps in `child.counter`; the tree keeps the order.

Order. The child with the least key is next; ties go to the older request, and one that was
preempted goes ahead of its equals. The tree stores keys and looks again only at the child that
is on top, so between two calls of `update` a key may rise (a charge does that) but never fall;
whoever lowers keys says so by `Siblings.update`.

Orders that change as time passes. A policy may sort children into a few classes by
`class_of`: within a class the order must not depend on the time, and the heads of the classes are
compared by `rank`, which may. That makes aging exact at the cost of one comparison a class.
"""

from __future__ import annotations

from typing import Protocol

from scheduler.sequence import Sequence

Key = tuple[float, ...]


class Child(Protocol):
    """Show a policy what it orders.

    `head` is the request that would be served next from the child; of a request, itself.
    `weight` is a share relative to its siblings. `counter` is the policy's to keep, 0.0 at first.
    """

    counter: float

    @property
    def weight(self) -> float: ...

    def head(self, now: float) -> Sequence: ...


class Siblings(Protocol):
    """Show a policy the children of its node that have requests waiting."""

    def first(self, now: float) -> Child | None:
        """Find the child that is next, or None where none waits."""
        ...

    def waiting(self) -> list[Child]:
        """List all that wait, in no order; costs as much as there are."""
        ...

    def update(self, child: Child, now: float) -> None:
        """Look at a child's key again, which may have fallen; ignores one that does not wait."""
        ...


class Policy:
    """Order children by `key`; a subclass overrides what it needs."""

    def key(self, child: Child, now: float) -> Key:
        """Rank a child within its class; the least goes first."""
        raise NotImplementedError

    def class_of(self, child: Child) -> int:
        """Name the child's class, one of a few."""
        return 0

    def rank(self, child: Child, now: float) -> Key:
        """Compare the heads of classes at `now`; the least goes first."""
        return self.key(child, now)

    def activate(self, child: Child, siblings: Siblings, now: float) -> None:
        """Learn that a child has begun to wait; it is not among `siblings` yet."""

    def deactivate(self, child: Child, now: float) -> None:
        """Learn that nothing of a child waits any more."""

    def is_owed(self, child: Child, siblings: Siblings, now: float) -> bool:
        """Tell whether forgetting an idle child would change what it or others get."""
        return False

    def charge(self, child: Child, cost: float, siblings: Siblings, now: float) -> None:
        """Learn that a child has cost `cost` weighted tokens; a refund is negative.

        The child need not be waiting any more.
        """
