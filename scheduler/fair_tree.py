"""Who is next: bands, then tenants, then keys, then requests, each level in its policy's order.

    root ─ band ─ tenant ─ key ─ request

The next request is found by going down from the root to the first child of each node. What a
request costs is charged to each node above it, so fairness holds between siblings at each level
whatever the order below: which of a tenant's requests goes first cannot change what the tenant
gets. A tenant that has split its work over many keys has split its own share.

Nodes are made when a request first needs them and kept while they wait or run, and as long as
their policy would miss what it knows of them; idle ones are swept when they outnumber the rest.

Borrowing. Where the configuration lends, a child whose head must start now to be in time may go
before the one that is next, if its counter is at most the loan ahead. Its counter pays it back.
Two tenants' service then differs by at most the loan more than their policy says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from scheduler.config import FairnessConfig
from scheduler.order import Order
from scheduler.policies.bands import BandShares
from scheduler.policies.base import Child, Key, Policy
from scheduler.policies.registry import levels_of, make_policy
from scheduler.request import Band
from scheduler.sequence import Sequence

_MAX_BORROWERS = 8
_MIN_SWEEP = 1024


class Node:
    """Hold what is below one place of the tree, of which `order` has what waits.

    `num_live` counts the requests below it and `num_waiting` those that wait, `waiting_tokens`
    what these have to compute before they draw their next tokens. `served` is all that was charged.
    """

    __slots__ = (
        "band",
        "children",
        "counter",
        "name",
        "num_live",
        "num_waiting",
        "order",
        "parent",
        "policy",
        "served",
        "urgent",
        "waiting_tokens",
        "weight",
    )

    def __init__(self, name: str, band: Band, parent: Node | None, policy: Policy) -> None:
        self.name = name
        self.band = band
        self.parent = parent
        self.policy = policy
        self.order = Order(policy)
        self.urgent: Order | None = None
        self.children: dict[str, Node] = {}
        self.weight = 1.0
        self.counter = 0.0
        self.num_live = self.num_waiting = self.waiting_tokens = 0
        self.served = 0.0

    def head(self, now: float) -> Sequence:
        """Find the request below that its own policies put first."""
        child = self.order.first(now)
        assert child is not None, "only a node that waits has a head"
        return child.head(now)


class FairTree:
    """Order the requests that wait, and keep the accounts of who was served what."""

    def __init__(self, config: FairnessConfig) -> None:
        self.config = config
        self._levels = levels_of(config.policy)
        self._root = Node("", Band.PRIORITY, None, BandShares(config.band_shares))
        self._waiting: set[Sequence] = set()
        self._node_of: dict[Sequence, Node] = {}
        self._num_nodes = 0
        self._sweep_at = _MIN_SWEEP

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._waiting

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._waiting)

    @property
    def bands(self) -> Mapping[str, Node]:
        """Hold the bands that were used, by name; tenants and keys are below them."""
        return self._root.children

    def enrol(self, sequence: Sequence, now: float) -> None:
        """Find who pays for a request; it can be pushed and charged until it is expelled."""
        if self._num_nodes >= self._sweep_at:
            self._sweep(now)
        request = sequence.request
        band = self._child(self._root, request.band.name, request.band)
        tenant = self._child(band, request.tenant_id, request.band)
        tenant.weight = request.weight
        key = self._child(tenant, request.key_id, request.band)
        self._node_of[sequence] = key
        for node in (key, tenant, band, self._root):
            node.num_live += 1

    def expel(self, sequence: Sequence) -> None:
        """Forget a request that has ended and does not wait."""
        assert sequence not in self._waiting
        node: Node | None = self._node_of.pop(sequence)
        while node is not None:
            node.num_live -= 1
            node = node.parent

    def push(self, sequence: Sequence, now: float) -> None:
        """Let a request wait; each node that nothing waited below begins to wait with it."""
        assert sequence not in self._waiting
        self._waiting.add(sequence)
        node: Node | None = self._node_of[sequence]
        child: Child = sequence
        while node is not None:
            node.num_waiting += 1
            node.waiting_tokens += sequence.num_uncached
            if child in node.order:
                node.order.update(child, now)
            else:
                node.policy.activate(child, node.order, now)
                node.order.add(child, now)
            if node.urgent is not None:
                node.urgent.update(child, now) if child in node.urgent else node.urgent.add(
                    child, now
                )
            child, node = node, node.parent

    def remove(self, sequence: Sequence, now: float) -> None:
        """Take a request out, wherever it stands."""
        self._waiting.remove(sequence)
        node: Node | None = self._node_of[sequence]
        child: Child = sequence
        still_waits = False
        while node is not None:
            node.num_waiting -= 1
            node.waiting_tokens -= sequence.num_uncached
            if still_waits:
                node.order.update(child, now)
            else:
                node.order.discard(child)
                node.policy.deactivate(child, now)
            if node.urgent is not None:
                node.urgent.update(child, now) if still_waits else node.urgent.discard(child)
            child, still_waits, node = node, bool(node.num_waiting), node.parent

    def peek(self, now: float) -> Sequence | None:
        """Show who is next."""
        child = self._first(self._root, now)
        while isinstance(child, Node):
            child = self._first(child, now)
        assert child is None or isinstance(child, Sequence)
        return child

    def others(self, num_requests: int, now: float) -> list[Sequence]:
        """List the heads of the tenants that come after the next one, in its band alone."""
        band = self._first(self._root, now)
        if not isinstance(band, Node):
            return []
        return [child.head(now) for child in band.order.least(num_requests + 1, now)[1:]]

    def charge(self, sequence: Sequence, cost: float, now: float) -> None:
        """Charge a request and all that is above it; a refund is negative."""
        child: Child = sequence
        node: Node | None = self._node_of[sequence]
        while node is not None:
            node.served += cost
            node.policy.charge(child, cost, node.order, now)
            child, node = node, node.parent

    def charge_each(self, sequences: Iterable[Sequence], cost: float, now: float) -> None:
        """Charge what is above each of many requests `cost`, with one charge a node."""
        node_of = self._node_of
        costs: dict[Node, float] = {}
        for sequence in sequences:
            node = node_of[sequence]
            costs[node] = costs.get(node, 0.0) + cost
        while costs:
            above: dict[Node, float] = {}
            for node, total in costs.items():
                node.served += total
                parent = node.parent
                if parent is not None:
                    parent.policy.charge(node, total, parent.order, now)
                    above[parent] = above.get(parent, 0.0) + total
            costs = above

    def set_weight(self, tenant_id: str, weight: float) -> None:
        """Change what a tenant is charged from now on; what it was charged stands."""
        for band in self._root.children.values():
            if tenant_id in band.children:
                band.children[tenant_id].weight = weight

    def _first(self, node: Node, now: float) -> Child | None:
        first = node.order.first(now)
        if node.urgent is None or first is None:
            return first
        loan = self.config.borrow_tokens
        late = [
            child
            for child in node.urgent.front(_MAX_BORROWERS, now)
            if child.head(now).start_by_s <= now
            and (child.counter - first.counter) * child.weight <= loan
        ]
        return min(late, key=lambda child: child.head(now).deadline_s, default=first)

    def _child(self, parent: Node, name: str, band: Band) -> Node:
        node = parent.children.get(name)
        if node is None:
            depth = 0 if parent is self._root else 1 if parent.parent is self._root else 2
            policy = make_policy(self._levels[depth], self.config)
            node = parent.children[name] = Node(name, band, parent, policy)
            if depth == 0 and self.config.borrow_tokens:
                node.urgent = Order(_MostUrgent())
            self._num_nodes += 1
        return node

    def _sweep(self, now: float) -> None:
        """Forget idle tenants and keys that nobody is owed anything by."""
        for band in self._root.children.values():
            for parent in (*band.children.values(), band):
                idle = [
                    name
                    for name, node in parent.children.items()
                    if not node.num_live and not parent.policy.is_owed(node, parent.order, now)
                ]
                for name in idle:
                    self._num_nodes -= 1 + len(parent.children.pop(name).children)
        self._sweep_at = max(_MIN_SWEEP, 2 * self._num_nodes)


class _MostUrgent(Policy):
    """Order tenants by when their heads must start at the latest."""

    def key(self, child: Child, now: float) -> Key:
        return (child.head(now).start_by_s,)
