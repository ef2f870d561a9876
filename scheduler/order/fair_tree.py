"""Who is next: bands, then tenants, then keys, then requests, each level in its policy's order.

    root ─ band ─ tenant ─ key ─ request

The next request is found by going down from the root to the first child of each node. What a
request costs is charged to each node above it, so fairness holds between siblings at each level
whatever the order below: which of a tenant's requests goes first cannot change what the tenant
gets. A tenant that has split its work over many keys has split its own share.

Neighbouring levels with the same policy are one where that policy allows it (see
`scheduler.policies.base`): `fcfs` alone is one queue a band. Their nodes still hold the accounts,
and share the order of the uppermost.

Nodes are made when a request first needs them and kept while they wait or run, and as long as
their policy would miss what it knows of them; idle ones are swept when they outnumber the rest.

Where the configuration lends, a tenant may go ahead of its turn; see `scheduler.order.borrowing`.

Ordering and charging are one long file: both walk the same nodes up, and either may change who is
next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from scheduler.config import FairnessConfig
from scheduler.order.borrowing import MostUrgent, first_with_loan
from scheduler.order.counters import Counters
from scheduler.order.siblings import Order
from scheduler.order.tree_node import Node
from scheduler.policies.bands import BandShares
from scheduler.policies.base import Child
from scheduler.policies.registry import levels_of, make_policy
from scheduler.request import Band
from scheduler.sequence import Sequence

_MIN_SWEEP = 1024
_MAX_CHARGED = 64


class Watcher(Protocol):
    """Follow what waits in a tree; see `scheduler.admission.queue_ahead`."""

    def joined(self, sequence: Sequence, key: Node, now: float) -> None: ...

    def left(self, sequence: Sequence, key: Node) -> None: ...

    def charged(self, tenants: Iterable[Node]) -> None: ...

    def changed(self, tenant: Node) -> None: ...


class FairTree:
    """Order the requests that wait, and keep the accounts of who was served what."""

    def __init__(self, config: FairnessConfig) -> None:
        self.config = config
        levels = levels_of(config.policy)
        policy = make_policy(levels[0], config)
        if policy.spans_bands and len({*levels}) == 1:
            self._levels = (levels[0], *levels)
        else:
            policy = BandShares(config.band_shares)
            self._levels = ("", *levels)
        self._counters = Counters()
        self._root = Node("", Band.PRIORITY, None, policy, self._counters)
        # The nodes of tenants and bands by their entries.
        self._node_of_entry: dict[int, Node] = {}
        self._charged: list[NDArray[np.intp]] = []
        # When it was found and who is next, until something changes.
        self._next: tuple[float, Sequence | None] | None = None
        self._waiting: set[Sequence] = set()
        self._node_of: dict[Sequence, Node] = {}
        # Whether charging keys and tenants is adding to their counters and nothing else.
        self.sums_up = self._may_sum_up()
        self._num_nodes = 0
        self._sweep_at = _MIN_SWEEP
        self._carried: set[Child] = set()
        self.watcher: Watcher | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._waiting

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._waiting)

    @property
    def num_live(self) -> int:
        """Count the requests that were enrolled and have not ended."""
        return self._root.num_live

    @property
    def bands(self) -> Mapping[str, Node]:
        """Hold the bands that were used, by name; tenants and keys are below them."""
        return self._root.children

    def enrol(self, sequence: Sequence, now: float) -> None:
        """Find who pays for a request; it can be pushed and charged until it is expelled."""
        if self._num_nodes >= self._sweep_at:
            self._sweep(now)
        request = sequence.request
        assert request.weight > 0.0, "shares are positive"
        sequence.counter = 0.0
        band = self._child(self._root, request.band.name, request.band)
        tenant = self._child(band, request.tenant_id, request.band)
        tenant.weight = request.weight
        key = self._child(tenant, request.key_id, request.band)
        self._node_of[sequence] = key
        sequence.account = (key.entry, tenant.entry, band.entry)
        for node in (key, tenant, band, self._root):
            node.num_live += 1

    def expel(self, sequence: Sequence) -> None:
        """Forget a request that has ended and does not wait."""
        assert sequence not in self._waiting
        key = self._node_of.pop(sequence)
        node: Node | None = key
        while node is not None:
            node.num_live -= 1
            node = node.parent
        if self.watcher is not None:
            self.watcher.changed(key.above)

    def key_of(self, sequence: Sequence) -> Node:
        """Find the node of the key that a request came with."""
        return self._node_of[sequence]

    def push(self, sequence: Sequence, now: float) -> None:
        """Let a request wait; each node that nothing waited below begins to wait with it."""
        assert sequence not in self._waiting
        self._next = None
        self._waiting.add(sequence)
        key = self._node_of[sequence]
        node: Node | None = key
        child: Child = sequence
        while node is not None:
            node.num_waiting += 1
            node.waiting_tokens += sequence.num_uncached
            if not node.is_merged:
                if child in node.order:
                    _look_again(node, child, now)
                else:
                    self._join(node, child, now)
                child = node
            node = node.parent
        if self.watcher is not None:
            self.watcher.joined(sequence, key, now)

    def remove(self, sequence: Sequence, now: float) -> None:
        """Take a request out, wherever it stands."""
        self._next = None
        self._waiting.remove(sequence)
        key = self._node_of[sequence]
        node: Node | None = key
        child: Child = sequence
        while node is not None:
            node.num_waiting -= 1
            node.waiting_tokens -= sequence.num_uncached
            if not node.is_merged:
                if isinstance(child, Node) and child.num_waiting:
                    _look_again(node, child, now)
                else:
                    node.order.discard(child)
                    node.policy.deactivate(child, now)
                    if node.urgent is not None:
                        node.urgent.discard(child)
                child = node
            node = node.parent
        if self.watcher is not None:
            self.watcher.left(sequence, key)

    def has_waiting_above(self, band: Band) -> bool:
        """Tell whether something waits in a higher band."""
        return any(node.num_waiting and node.band < band for node in self.bands.values())

    def peek(self, now: float) -> Sequence | None:
        """Show who is next."""
        if self._next is not None and self._next[0] == now:
            return self._next[1]
        child = self._first(self._root, now)
        while isinstance(child, Node):
            child = self._first(child, now)
        assert child is None or isinstance(child, Sequence)
        self._next = now, child
        return child

    def others(self, num_requests: int, now: float) -> list[Sequence]:
        """List the heads of the tenants that come after the next one, in its band alone.

        Where tenants have no turns of their own, the requests that come after the next one.
        """
        band = self._first(self._root, now)
        node = band if isinstance(band, Node) else self._root
        following = node.order.least(num_requests + 1, now)
        turn = self._first(node, now)
        return [child.head(now) for child in following if child is not turn][:num_requests]

    def charge(self, sequence: Sequence, cost: float, now: float) -> None:
        """Charge a request and all that is above it; a refund is negative."""
        self._next = None
        key = self._node_of[sequence]
        node: Node | None = key
        child: Child = sequence
        while node is not None:
            node.served += cost
            if not node.is_merged:
                node.policy.charge(child, cost, node.order, now)
                if node.parent is not None and node.may_turn:
                    _look_again(node.parent, node, now)
                child = node
            node = node.parent
        if self.watcher is not None:
            self.watcher.charged((key.above,))

    def charge_each(self, sequences: Iterable[Sequence], cost: float, now: float) -> None:
        """Charge what is above each of many requests `cost`, with one charge a node."""
        assert cost >= 0.0
        self._next = None
        if self.sums_up:
            accounts = [sequence.account for sequence in sequences]
            self.charge_accounts(np.array(accounts, dtype=np.intp).reshape(-1, 3), cost, now)
            return
        costs: dict[Node, float] = {}
        for sequence in sequences:
            node = self._node_of[sequence]
            costs[node] = costs.get(node, 0.0) + cost
        costs = _charge_level(costs, now)
        if self.watcher is not None:
            self.watcher.charged(costs)
        while costs:
            costs = _charge_level(costs, now)

    def charge_accounts(self, accounts: NDArray[np.intp], cost: float, now: float) -> None:
        """Do the same by the `account` of each request, [n, 3]; only where it `sums_up`."""
        # This runs in every step, for as many tenants as have rows.
        assert self.sums_up
        assert cost >= 0.0
        self._next = None
        self._counters.charge(accounts[:, :2].ravel(), cost)
        self._charged.append(accounts[:, 1])
        if len(self._charged) > _MAX_CHARGED:
            self._charged = [np.unique(np.concatenate(self._charged))]
        bands = np.bincount(accounts[:, 2])
        costs = {
            self._node_of_entry[entry]: cost * int(bands[entry])
            for entry in np.flatnonzero(bands).tolist()
        }
        while costs:
            costs = _charge_level(costs, now)

    def take_charged(self) -> set[Node]:
        """Return the tenants that `charge_each` has charged without telling the watcher."""
        if not self._charged:
            return set()
        entries = np.unique(np.concatenate(self._charged))
        self._charged.clear()
        nodes = map(self._node_of_entry.get, entries.tolist())
        return {node for node in nodes if node is not None}

    def set_weight(self, tenant_id: str, weight: float) -> None:
        """Change what a tenant is charged from now on; what it was charged stands."""
        for band in self._root.children.values():
            if tenant_id in band.children:
                tenant = band.children[tenant_id]
                tenant.weight = weight
                if self.watcher is not None:
                    self.watcher.changed(tenant)

    def tenant_counter(self, sequence: Sequence) -> float:
        """Tell how far the tenant of a request is ahead, in what its policy counts."""
        tenant = self._node_of[sequence].parent
        assert tenant is not None
        return tenant.counter

    def carry_over(self, before: FairTree) -> None:
        """Take over what nodes were charged, and their counters where the policy has stayed.

        What waited is pushed next; nodes that go on waiting so are not lifted over each other.
        """
        same = [a == b for a, b in zip(self._levels, before._levels, strict=True)]
        above = {before._root: self._root}
        while above:
            below: dict[Node, Node] = {}
            for theirs, mine in above.items():
                for name, child in theirs.children.items():
                    below[child] = my_child = self._child(mine, name, child.band)
                    my_child.take_over(child, counter=same[theirs.depth])
                    if same[theirs.depth] and child.num_waiting:
                        self._carried.add(my_child)
                if same[theirs.depth]:
                    mine.policy.resume(theirs.policy, dict(below.items()))
            above = below

    def _may_sum_up(self) -> bool:
        tenants, keys, requests = (make_policy(name, self.config) for name in self._levels[1:])
        return (
            all(policy.accrues and not policy.reads_head for policy in (tenants, keys))
            and not requests.keeps_accounts
            and not self.config.borrow_tokens
        )

    def _join(self, node: Node, child: Child, now: float) -> None:
        if child in self._carried:
            self._carried.discard(child)
        else:
            node.policy.activate(child, node.order, now)
        node.order.add(child, now)
        if node.urgent is not None:
            node.urgent.add(child, now)

    def _first(self, node: Node, now: float) -> Child | None:
        first = node.order.first(now)
        if node.urgent is None or first is None:
            return first
        return first_with_loan(node, first, self.config.borrow_tokens, now)

    def _child(self, parent: Node, name: str, band: Band) -> Node:
        node = parent.children.get(name)
        if node is None:
            level = self._levels[parent.depth + 1]
            policy = None
            if level != self._levels[parent.depth] or parent.policy.keeps_accounts:
                policy = make_policy(level, self.config)
            node = parent.children[name] = Node(name, band, parent, policy, self._counters)
            self._node_of_entry[node.entry] = node
            if parent is self._root and self.config.borrow_tokens and node.policy.keeps_accounts:
                node.urgent = Order(MostUrgent())
            self._num_nodes += 1
        return node

    def _sweep(self, now: float) -> None:
        """Forget idle tenants and keys that nobody is owed anything by."""
        for band in self._root.children.values():
            for parent in (*band.children.values(), band):
                idle = [
                    name
                    for name, node in parent.children.items()
                    if not (node.num_live or node.children)
                    and not parent.policy.is_owed(node, parent.order, now)
                ]
                for name in idle:
                    entry = parent.children.pop(name).entry
                    del self._node_of_entry[entry]
                    self._counters.close(entry)
                self._num_nodes -= len(idle)
        self._sweep_at = max(_MIN_SWEEP, 2 * self._num_nodes)


def _charge_level(costs: dict[Node, float], now: float) -> dict[Node, float]:
    """Charge nodes of one level, and return what that makes for those above."""
    above: dict[Node, float] = {}
    for node, cost in costs.items():
        node.served += cost
        parent = node.parent
        if parent is None:
            continue
        above[parent] = above.get(parent, 0.0) + cost
        if node.is_merged:
            continue
        policy = parent.policy
        if (policy.reads_head or parent.urgent is not None) and node.may_turn:
            _look_again(parent, node, now)
        if policy.accrues:
            node.counter += cost / node.weight
        else:
            policy.charge(node, cost, parent.order, now)
    return above


def _look_again(node: Node, child: Child, now: float) -> None:
    """Find the place of a child that may have another head now."""
    if node.policy.reads_head:
        node.order.update(child, now)
    if node.urgent is not None:
        node.urgent.update(child, now)
