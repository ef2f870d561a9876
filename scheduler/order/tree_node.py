"""A place of the fair tree: a band, an organisation, a tenant or a key."""

from __future__ import annotations

import math
from enum import IntEnum

from scheduler.order.counters import Counters
from scheduler.order.siblings import Order
from scheduler.policies.base import Child, Policy
from scheduler.request import Band
from scheduler.sequence import Sequence


class Level(IntEnum):
    """Say how deep a node stands; tenants without an organisation stand right below their band."""

    ROOT = 0
    BAND = 1
    ORGANISATION = 2
    TENANT = 3
    KEY = 4


class Node:
    """Hold what is below one place of the tree, of which `order` has what waits.

    `num_live` counts the requests below it and `num_waiting` those that wait, `waiting_tokens`
    what these have to compute before they draw their next tokens. `served` is all that was charged.
    One that `is_merged` shares its parent's order. `urgent` has the children by when they must
    start, where the configuration lends. Its `counter`, `weight` and `served` are an entry of the
    tree's counters.
    """

    __slots__ = (
        "_head",
        "_head_at_s",
        "_head_charges",
        "band",
        "children",
        "counters",
        "entry",
        "is_merged",
        "level",
        "name",
        "num_live",
        "num_waiting",
        "order",
        "parent",
        "policy",
        "urgent",
        "waiting_tokens",
    )

    def __init__(
        self,
        level: Level,
        name: str,
        band: Band,
        parent: Node | None,
        policy: Policy | None,
        counters: Counters,
    ) -> None:
        self.level = level
        self.name = name
        self.band = band
        self.parent = parent
        self.is_merged = policy is None
        self.policy: Policy
        self.order: Order
        if policy is None:
            assert parent is not None
            self.policy, self.order = parent.policy, parent.order
        else:
            self.policy, self.order = policy, Order(policy)
        self.urgent: Order | None = None
        self.children: dict[str, Node] = {}
        self.num_live = self.num_waiting = self.waiting_tokens = 0
        self.counters = counters
        self.entry: int = counters.open()
        self._head: Sequence | None = None
        self._head_at_s = math.nan
        self._head_charges = 0

    @property
    def counter(self) -> float:
        return self.counters.values.item(self.entry)

    @counter.setter
    def counter(self, value: float) -> None:
        self.counters.values[self.entry] = value

    @property
    def weight(self) -> float:
        return self.counters.weights.item(self.entry)

    @weight.setter
    def weight(self, value: float) -> None:
        self.counters.weights[self.entry] = value

    @property
    def served(self) -> float:
        return self.counters.served.item(self.entry)

    @served.setter
    def served(self, value: float) -> None:
        self.counters.served[self.entry] = value

    def take_over(self, before: Node, *, counter: bool) -> None:
        """Go on with the accounts of a node of an earlier tree."""
        self.served, self.weight = before.served, before.weight
        if counter:
            self.counter = before.counter

    def leave(self) -> None:
        """Give its entry back, and keep what was in it: its policy may remember it yet."""
        self.counters = self.counters.take_out(self.entry)
        self.entry = 0

    @property
    def above(self) -> Node:
        """Return the parent of a node that is not the root."""
        assert self.parent is not None
        return self.parent

    @property
    def member(self) -> Node:
        """Return who shares the band's service: the organisation of a tenant, or itself."""
        above = self.above
        return above if above.level is Level.ORGANISATION else self

    @property
    def may_turn(self) -> bool:
        """Tell whether a charge below it may have made another request its head."""
        return self.policy.keeps_accounts and len(self.order) > 1

    def head(self, now: float) -> Sequence:
        """Find the request below that its own policies put first.

        Kept until the time passes, somebody is charged with many others or the node `turns`.
        """
        num_charges, head = self.counters.num_charges, self._head
        if head is None or self._head_at_s != now or self._head_charges != num_charges:
            child = self.order.first(now)
            assert child is not None, "only a node that waits has a head"
            self._head = head = child.head(now)
            self._head_at_s, self._head_charges = now, num_charges
        return head

    def turns(self) -> None:
        """Note that another request may be the head, by what has changed below."""
        self._head = None

    def look_again(self, child: Child, now: float) -> None:
        """Find the place of a child that may have another head now."""
        if self.policy.reads_head:
            self.order.update(child, now)
        if self.urgent is not None:
            self.urgent.update(child, now)
