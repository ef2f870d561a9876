"""What a policy is: it orders the children of one node of the fair tree, and is told their cost.

A child is a request, or a node with requests below it (a key, a tenant, a band), so each policy
can be used at any level. A policy is pure: no clock (`now` is an argument, in seconds), no I/O,
no queue. What it remembers of a child it keeps in `child.counter`; the tree keeps the order.

Order. The child with the least key is next. Ties go to the child with the older head, and one
whose head was preempted goes ahead of its equals; a policy that does not read heads leaves ties
to whoever began to wait first. The tree stores keys and looks again only at the child that is on
top, so between two calls of `update` a key may rise (a charge does that) but never fall; whoever
lowers keys says so by `Siblings.update`. The tree itself says so when a child gets another head.

Orders that change as time passes. A policy may sort children into a few classes by
`class_of`: within a class the order must not depend on the time, and the heads of the classes are
compared by `rank`, which may. That makes aging exact at the cost of one comparison a class. The
class itself may change with time; that is noticed when the child comes to the top of its class.

One order of many levels. Where neighbouring levels have the same policy and it keeps no accounts,
they are one level: all requests below stand in one order, not the first of each in an order of
firsts. A level that reads heads, above one with another order that changes with time, sees a new
head only when something happens below it or it comes to the top.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import ClassVar, Protocol

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

    @property
    def unserved(self) -> Callable[[], Mapping[Child, float]]:
        """Tell what children, waiting or not, were charged for prompts and have not had yet."""
        ...


class Policy:
    """Order children by `key`; a subclass overrides what it needs.

    `reads_head` says that keys come from the children's heads, `keeps_accounts` that they come
    from what the children were charged, and `spans_bands` that a policy which orders all three
    levels orders the bands as well, instead of their guaranteed shares. One that `accrues` does
    nothing in `charge` but add the cost, over the child's weight, to its counter: the tree does
    that itself where it charges hundreds of children in a step. Where it `settles`, the key of a
    request never changes while that waits, and where it `ranks_by_class`, a class goes wholly
    before the next one.
    """

    reads_head: ClassVar[bool] = True
    keeps_accounts: ClassVar[bool] = False
    spans_bands: ClassVar[bool] = False
    accrues: ClassVar[bool] = False
    settles: ClassVar[bool] = False
    ranks_by_class: ClassVar[bool] = False

    def key(self, child: Child, now: float) -> Key:
        """Rank a child within its class; the least goes first."""
        raise NotImplementedError

    def class_of(self, child: Child, now: float) -> int:
        """Name the child's class, one of a few."""
        return 0

    def look(self, child: Child, now: float) -> tuple[Key, int]:
        """Return the key and the class of a child; for those that find both in one."""
        return self.key(child, now), self.class_of(child, now)

    def still_has(self, child: Child, ordinal: int, class_: int, now: float) -> bool:
        """Tell in short that a child has the head of that ordinal still, and so its key, and class.

        False says nothing.
        """
        return False

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

    def lean(self, child: Child, ratio: float, siblings: Siblings, now: float) -> None:
        """Learn that a child's weight is about to be multiplied, and not by who set it.

        How far it is ahead of its turn, in service, is to stay what it is.
        """

    def resume(self, before: Policy, counterparts: Mapping[Child, Child]) -> None:
        """Go on from where a policy of the same kind was, for the children in its children's place.

        What it kept in `counter` has been taken over.
        """

    def lead(self, child: Child, first: Child) -> float:
        """Count the weighted tokens by which `child` is ahead of its turn, which is `first`'s.

        Without bound where there are no accounts in which it could pay them back.
        """
        return math.inf


def require_positive(**params: float) -> None:
    """Check parameters that divide or scale.

    Raises: `ValueError`.
    """
    for name, value in params.items():
        if not 0.0 < value < math.inf:
            raise ValueError(f"{name} must be positive, not {value}")
