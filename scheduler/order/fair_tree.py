"""Who is next: bands, organisations, tenants, keys, requests, each level in its policy's order.

    root ─ band ─ organisation ─ tenant ─ key ─ request

The next request is found by going down from the root to the first child of each node. What a
request costs is charged to each node above it, so fairness holds between siblings at each level
whatever the order below: which of a tenant's requests goes first cannot change what the tenant
gets. A tenant that has split its work over many keys has split its own share, and an organisation
that has split it over many tenants likewise.

Organisations have the policy of tenants. A tenant that belongs to none stands beside them, right
below its band and with its own weight, so that a level nobody uses costs nothing.

Neighbouring levels with the same policy are one where that policy allows it (see
`scheduler.policies.base`): `fcfs` alone is one queue a band. Their nodes still hold the accounts,
and share the order of the uppermost.

Nodes are made when a request first needs them and kept while they wait or run, and as long as
their policy would miss what it knows of them. Idle ones are swept once there are many: each request
that comes has a few looked at, one after the other, so that none of them pays for thousands.

Where the configuration lends, a tenant may go ahead of its turn; see `scheduler.order.borrowing`.

Ordering and charging are one long file: both walk the same nodes up, and either may change who is
next.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from scheduler.config import FairnessConfig
from scheduler.order.borrowing import Soonest, first_with_loan
from scheduler.order.counters import Counters
from scheduler.order.siblings import Order
from scheduler.order.tree_node import Level, Node
from scheduler.order.units import Tokens, Unit
from scheduler.policies.bands import BandShares
from scheduler.policies.base import Child
from scheduler.policies.registry import levels_of, make_policy
from scheduler.request import Band, Request
from scheduler.running import Ledger
from scheduler.sequence import MEMBER, Sequence

_MIN_SWEEP = 1024
# Twice as many as a request may make, or they would outnumber the rest.
_SWEEP_STRIDE = 6
_MAX_CHARGED = 64
_TURN_TOKENS = 2048.0


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
            self._levels = (levels[0], levels[0], *levels)
        else:
            policy = BandShares(config.band_shares)
            self._levels = ("", levels[0], *levels)
        self._counters = Counters()
        self._root = Node(Level.ROOT, "", Band.PRIORITY, None, policy, self._counters)
        # Not among the children of their bands: a tenant may have the same name.
        self._organisations: dict[tuple[Band, str], Node] = {}
        # All nodes but the root by their entries.
        self._node_of_entry: dict[int, Node] = {}
        self._charged: list[NDArray[np.intp]] = []
        # Counts what may have changed who is next.
        self.version = 0
        # Which children of nodes are next, and for which time and version they were found.
        self._turns: dict[Node, Child | None] = {}
        self._turns_as_of = (math.nan, 0)
        self._waiting: set[Sequence] = set()
        self._node_of: dict[Sequence, Node] = {}
        # Whether charging keys and tenants is adding to their counters and nothing else.
        self.sums_up = self._may_sum_up()
        # Whether tenants have shares, and not turns by the order of their requests.
        self.has_shares = make_policy(self._levels[Level.BAND], config).keeps_accounts
        # All nodes but bands, the one that is to be looked at next first.
        self._swept: deque[Node] = deque()
        self._carried: set[Child] = set()
        self.watcher: Watcher | None = None
        # Those whose prompts are being computed: they are charged for what they have not had.
        self.under_way: Collection[Sequence] = ()
        # What its requests are charged in.
        self.unit: Unit = Tokens(config.prices)

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
    def served(self) -> float:
        """Sum all that was charged."""
        return self._root.served

    @property
    def bands(self) -> Mapping[str, Node]:
        """Hold the bands that were used, by name; tenants of no organisation are their children."""
        return self._root.children

    def below(self, node: Node) -> Iterator[Node]:
        """Go through the nodes right below one; of a band, organisations and tenants without."""
        yield from node.children.values()
        if node.level is Level.BAND:
            yield from (o for o in self._organisations.values() if o.parent is node)

    def tenants(self, band: Node) -> Iterator[Node]:
        """Go through the tenants of a band, whether they belong to organisations or not."""
        for node in self.below(band):
            if node.level is Level.ORGANISATION:
                yield from node.children.values()
            else:
                yield node

    def find_organisation(self, request: Request) -> Node | None:
        """Find the organisation that a request is from, if it has one that is known."""
        return self._organisations.get((request.band, request.organisation_id))

    def find_tenant(self, request: Request) -> Node | None:
        """Find the tenant that a request is from, if it is known."""
        above: Node | None
        if request.organisation_id:
            above = self.find_organisation(request)
        else:
            above = self._root.children.get(request.band.name)
        return None if above is None else above.children.get(request.tenant_id)

    def find_member(self, request: Request) -> Node | None:
        """Find who shares its band with others: its organisation, or a tenant of none."""
        if request.organisation_id:
            return self.find_organisation(request)
        return self.find_tenant(request)

    def enrol(self, sequence: Sequence, now: float) -> None:
        """Find who pays for a request; it can be pushed and charged until it is expelled."""
        if len(self._swept) >= _MIN_SWEEP:
            self._sweep(now)
        request = sequence.request
        assert request.weight > 0.0, "shares are positive"
        sequence.counter = 0.0
        band = above = self._child(self._root, Level.BAND, request.band.name, request.band)
        if request.organisation_id:
            assert request.organisation_weight > 0.0, "shares are positive"
            above = self._child(band, Level.ORGANISATION, request.organisation_id, request.band)
            above.weight = request.organisation_weight
        tenant = self._child(above, Level.TENANT, request.tenant_id, request.band)
        tenant.weight = request.weight
        key = self._child(tenant, Level.KEY, request.key_id, request.band)
        self._node_of[sequence] = key
        sequence.account = (key.entry, tenant.entry, tenant.member.entry, band.entry)
        node: Node | None = key
        while node is not None:
            node.num_live += 1
            node = node.parent

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
        self.version += 1
        self._waiting.add(sequence)
        key = self._node_of[sequence]
        self._counters.waiting[key.above.member.entry] += 1
        node: Node | None = key
        child: Child = sequence
        while node is not None:
            node.turns()
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
        self.version += 1
        self._waiting.remove(sequence)
        key = self._node_of[sequence]
        self._counters.waiting[key.above.member.entry] -= 1
        node: Node | None = key
        child: Child = sequence
        while node is not None:
            node.turns()
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
        child = self._first(self._root, now)
        while isinstance(child, Node):
            child = self._first(child, now)
        assert child is None or isinstance(child, Sequence)
        return child

    def others(self, num_requests: int, now: float) -> list[Sequence]:
        """List the heads of those that come after the next one, in its band alone.

        One of each organisation and of each tenant without; of each tenant where one organisation
        waits alone. Where tenants have no turns of their own, the requests after the next one.
        """
        band = self._first(self._root, now)
        node = band if isinstance(band, Node) else self._root
        if len(node.order) == 1:
            alone = self._first(node, now)
            if isinstance(alone, Node) and alone.level is Level.ORGANISATION:
                node = alone
        following = node.order.least(num_requests + 1, now)
        turn = self._first(node, now)
        return [child.head(now) for child in following if child is not turn][:num_requests]

    def heads_above(self, band: Band, now: float) -> list[Sequence]:
        """List who is next in each higher band, where bands have turns of their own."""
        if self._root.policy.spans_bands:
            return []
        above = [node for node in self.bands.values() if node.band < band and node.num_waiting]
        return [node.head(now) for node in sorted(above, key=lambda node: node.band)]

    def charge(self, sequence: Sequence, cost: float, now: float) -> None:
        """Charge a request and all that is above it; a refund is negative."""
        self.version += 1
        key = self._node_of[sequence]
        node: Node | None = key
        child: Child = sequence
        while node is not None:
            node.turns()
            node.served += cost
            if not node.is_merged:
                node.policy.charge(child, cost, node.order, now)
                if node.parent is not None and node.may_turn:
                    _look_again(node.parent, node, now)
                child = node
            node = node.parent
        if self.watcher is not None:
            self.watcher.charged((key.above,))

    def charge_band(self, sequence: Sequence, cost: float, now: float) -> None:
        """Count what is computed again against its band's turn, and nobody below it."""
        if self._root.policy.spans_bands:
            return
        self.version += 1
        band = self.bands[sequence.request.band.name]
        self._root.policy.charge(band, cost, self._root.order, now)

    def charge_each(self, costs: Mapping[Sequence, float], now: float) -> None:
        """Charge what is above each of many requests its cost, with one charge a node."""
        self.version += 1
        if self.sums_up:
            accounts = [sequence.account for sequence in costs]
            self.charge_accounts(
                np.array(accounts, dtype=np.intp).reshape(-1, 4),
                np.fromiter(costs.values(), dtype=np.float64),
                now,
            )
            return
        of_node: dict[Node, float] = {}
        for sequence, cost in costs.items():
            node = self._node_of[sequence]
            of_node[node] = of_node.get(node, 0.0) + cost
        of_node = _charge_level(of_node, now)
        if self.watcher is not None:
            self.watcher.charged(of_node)
        of_node = _charge_level(of_node, now)
        shared = {node: cost for node, cost in of_node.items() if node.level is Level.ORGANISATION}
        for organisation in shared:
            del of_node[organisation]
        for band, cost in _charge_level(shared, now).items():
            of_node[band] = of_node.get(band, 0.0) + cost
        while of_node:
            of_node = _charge_level(of_node, now)

    def charge_accounts(
        self, accounts: NDArray[np.intp], costs: NDArray[np.float64], now: float
    ) -> None:
        """Do the same by the `account` of each request, [n, 4]; only where it `sums_up`.

        Costs, [n], are at least zero.
        """
        # This runs in every step, for as many tenants as have rows.
        assert self.sums_up
        self._counters.charge(accounts[:, :2].ravel(), np.repeat(costs, 2))
        if self._organisations:
            members = accounts[:, 2]
            is_shared = members != accounts[:, 1]
            self._counters.charge(members[is_shared], costs[is_shared])
        bands = np.bincount(accounts[:, 3], weights=costs)
        of_band = {entry: float(bands[entry]) for entry in np.flatnonzero(bands).tolist()}
        self._charge_bands(accounts[:, 1], of_band, now)

    @property
    def ledger(self) -> Ledger:
        """Return the columns that charging adds to, for who does it by itself."""
        counters = self._counters
        has_organisations = bool(self._organisations)
        return Ledger(counters.values, counters.served, counters.weights, has_organisations)

    def note_charged(
        self, tenants: NDArray[np.intp], bands: Mapping[int, float], now: float
    ) -> None:
        """Note that all below some bands were charged in the `ledger`, and these so much."""
        self._counters.num_charges += 1
        self._charge_bands(tenants, dict(sorted(bands.items())), now)

    def _charge_bands(
        self, tenants: NDArray[np.intp], bands: Mapping[int, float], now: float
    ) -> None:
        self.version += 1
        self._charged.append(tenants)
        if len(self._charged) > _MAX_CHARGED:
            self._charged = [np.unique(np.concatenate(self._charged))]
        of_node = {self._node_of_entry[entry]: cost for entry, cost in bands.items() if cost}
        while of_node:
            of_node = _charge_level(of_node, now)

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
        self.version += 1
        for above in (*self._root.children.values(), *self._organisations.values()):
            tenant = above.children.get(tenant_id)
            if tenant is not None:
                tenant.weight = weight
                if self.watcher is not None:
                    self.watcher.changed(tenant)

    def set_organisation_weight(self, organisation_id: str, weight: float) -> None:
        """Do the same to an organisation."""
        self.version += 1
        for band in Band:
            organisation = self._organisations.get((band, organisation_id))
            if organisation is not None:
                organisation.weight = weight
                if self.watcher is not None:
                    for tenant in organisation.children.values():
                        self.watcher.changed(tenant)

    def weights_of(self, tenants: NDArray[np.intp]) -> NDArray[np.float64]:
        """Look the weights of tenants, or organisations, up by their entries."""
        return self._counters.weights[tenants]

    def num_waiting_of(self, tenants: NDArray[np.intp]) -> NDArray[np.float64]:
        """Count what waits of organisations, and of tenants of none, by their entries."""
        return self._counters.waiting[tenants]

    def share_counters(self, sequence: Sequence) -> tuple[float, float]:
        """Tell how far the organisation and the tenant of a request are ahead of their shares.

        A tenant of no organisation stands for both. Within an organisation a prompt under way is
        reckoned as if it had not been charged, until it has had `_TURN_TOKENS`: newcomers would all
        pass those just charged, and hundreds of tenants fill the slots with prompts that nobody
        finishes. 0.0 where shares are not kept.
        """
        tenant = self._node_of[sequence].above
        member = tenant.member
        if not member.above.policy.keeps_accounts:
            return 0.0, 0.0
        if member is tenant:
            return tenant.counter, tenant.counter
        num_had = max(sequence.num_ran, sequence.num_computed)
        if num_had >= sequence.num_charged:
            return member.counter, tenant.counter
        had = self.unit.rest(sequence.num_charged, 0)
        had -= self.unit.rest(sequence.num_charged, num_had)
        beyond = max(0.0, had - _TURN_TOKENS)
        return member.counter, sequence.begun_at_counter + beyond / tenant.weight

    def share_counters_of(
        self, accounts: NDArray[np.intp], row_of: Callable[[int], Sequence]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Do the same for many requests by the `account` of each, [n, 4].

        `row_of` finds the request of an index. Returns: two columns.
        """
        values = self._counters.values
        if not self.has_shares:
            return np.zeros(len(accounts)), np.zeros(len(accounts))
        tenants, members = accounts[:, 1], accounts[:, MEMBER]
        counters = values[members], values[tenants]
        if self._organisations:
            for index in np.flatnonzero(tenants != members).tolist():
                counters[1][index] = self.share_counters(row_of(index))[1]
        return counters

    def note_begin(self, sequence: Sequence) -> None:
        """Remember where its tenant stood when a request was given a slot, before its charge."""
        sequence.begun_at_counter = self._node_of[sequence].above.counter

    def lead(self, sequence: Sequence, first: Sequence) -> float:
        """Count by how much a tenant would go ahead of another of its band; of a higher one, 0."""
        if sequence.request.band != first.request.band:
            return 0.0
        counters = self.share_counters(sequence)[0] - self.share_counters(first)[0]
        return counters * self._node_of[sequence].above.member.weight

    def share_counter_of_next(self, sequence: Sequence, now: float) -> float:
        """Tell how far who sends a request will be ahead in its band, had it begun to wait now.

        The request is not enrolled; of a tenant of an organisation it is that one's counter.
        """
        request = sequence.request
        band = self.bands.get(request.band.name)
        if band is None or not band.policy.keeps_accounts:
            return 0.0
        member = self.find_member(request)
        if member is not None and member.num_waiting:
            return member.counter
        # What its counter would be; it is not kept, since pushing it does the same in time.
        before, sequence.counter = sequence.counter, 0.0 if member is None else member.counter
        band.policy.activate(sequence, band.order, now)
        counter, sequence.counter = sequence.counter, before
        return counter

    def _unserved(self, parent: Node) -> dict[Child, float]:
        """Sum what the children of a node were charged for prompts and have not had."""
        unserved: dict[Child, float] = {}
        for sequence in self.under_way:
            num_had = max(sequence.num_ran, sequence.num_computed)
            if sequence.num_charged > num_had:
                child: Node | None = self._node_of[sequence]
                while child is not None and child.parent is not parent:
                    child = child.parent
                if child is not None:
                    cost = self.unit.rest(sequence.num_charged, num_had)
                    unserved[child] = unserved.get(child, 0.0) + cost
        return unserved

    def carry_over(self, before: FairTree) -> None:
        """Take over what nodes were charged, and their counters where the policy has stayed.

        What waited is pushed next; nodes that go on waiting so are not lifted over each other.
        """
        is_same_unit = self.config.unit == before.config.unit
        levels = zip(self._levels, before._levels, strict=True)
        same = [a == b and is_same_unit for a, b in levels]
        above = {before._root: self._root}
        while above:
            below: dict[Node, Node] = {}
            for theirs, mine in above.items():
                for child in before.below(theirs):
                    below[child] = my_child = self._child(mine, child.level, child.name, child.band)
                    my_child.take_over(child, counter=same[theirs.level])
                    if same[theirs.level] and child.num_waiting:
                        self._carried.add(my_child)
                if same[theirs.level]:
                    mine.policy.resume(theirs.policy, dict(below.items()))
            above = below

    def _may_sum_up(self) -> bool:
        tenants, keys, requests = (make_policy(name, self.config) for name in self._levels[2:])
        return (
            all(policy.accrues and not policy.reads_head for policy in (tenants, keys))
            and not requests.keeps_accounts
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
        as_of = now, self.version
        if self._turns_as_of != as_of:
            self._turns_as_of = as_of
            self._turns.clear()
        elif node in self._turns:
            return self._turns[node]
        first = node.order.first(now)
        if node.urgent is not None and first is not None:
            first = first_with_loan(node, first, self.config.borrow_tokens, now)
        self._turns[node] = first
        return first

    def _child(self, parent: Node, level: Level, name: str, band: Band) -> Node:
        if level is Level.ORGANISATION:
            node = self._organisations.get((band, name))
        else:
            node = parent.children.get(name)
        return self._grow(parent, level, name, band) if node is None else node

    def _grow(self, parent: Node, level: Level, name: str, band: Band) -> Node:
        policy = None
        if self._levels[level] != self._levels[parent.level] or parent.policy.keeps_accounts:
            policy = make_policy(self._levels[level], self.config)
        node = Node(level, name, band, parent, policy, self._counters)
        if level is Level.ORGANISATION:
            self._organisations[band, name] = node
        else:
            parent.children[name] = node
        self._node_of_entry[node.entry] = node
        if node.policy.accrues and not node.is_merged:
            node.order.unserved = partial(self._unserved, node)
        has_tenants = level is Level.BAND or level is Level.ORGANISATION
        if has_tenants and self.config.borrow_tokens and node.policy.keeps_accounts:
            node.urgent = Order(Soonest())
        if level is not Level.BAND:
            self._swept.append(node)
        return node

    def _sweep(self, now: float) -> None:
        """Forget those of the next few nodes that are idle, and to whom nothing is owed.

        A tenant goes after its keys have, an organisation after its tenants.
        """
        for _ in range(min(_SWEEP_STRIDE, len(self._swept))):
            node = self._swept.popleft()
            parent = node.above
            if node.num_live or node.children or parent.policy.is_owed(node, parent.order, now):
                self._swept.append(node)
                continue
            if node.level is Level.ORGANISATION:
                del self._organisations[node.band, node.name]
            else:
                del parent.children[node.name]
            del self._node_of_entry[node.entry]
            node.leave()


def _charge_level(costs: dict[Node, float], now: float) -> dict[Node, float]:
    """Charge nodes of one level, and return what that makes for those above."""
    above: dict[Node, float] = {}
    for node, cost in costs.items():
        node.served += cost
        parent = node.parent
        if parent is None:
            continue
        above[parent] = above.get(parent, 0.0) + cost
        parent.turns()
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
