"""What requests cost those above them: every node on the way up is charged.

What a request costs is charged to each node above it, so fairness holds between siblings at each
level whatever the order below: which of a tenant's requests goes first cannot change what the
tenant gets. A charge may change who is next, so nodes whose policies go by heads look again.

In every step hundreds of rows are charged. Where a policy's counter is a sum of costs over weights
(`sums_up`) that is done to columns of `scheduler.order.counters`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from scheduler.config import FairnessConfig
from scheduler.order.places import Places
from scheduler.order.tree_node import Level, Node
from scheduler.order.units import Tokens, Unit
from scheduler.policies.base import Child
from scheduler.policies.registry import make_policy
from scheduler.request import Band
from scheduler.running import Ledger
from scheduler.sequence import Sequence

_MAX_CHARGED = 64


class Watcher(Protocol):
    """Follow what waits in a tree; see `scheduler.admission.queue_ahead`."""

    def joined(self, sequence: Sequence, key: Node, now: float) -> None: ...

    def left(self, sequence: Sequence, key: Node) -> None: ...

    def charged(self, tenants: Iterable[Node]) -> None: ...

    def changed(self, tenant: Node) -> None: ...


class Accounts(Places):
    """Keep what nodes were charged, for requests that `_node_of` knows the keys of."""

    def __init__(self, config: FairnessConfig) -> None:
        super().__init__(config)
        self._node_of: dict[Sequence, Node] = {}
        self._charged: list[NDArray[np.intp]] = []
        # Counts what may have changed who is next.
        self.version = 0
        # Whether charging keys and tenants is adding to their counters and nothing else.
        self.sums_up = self._may_sum_up()
        self.watcher: Watcher | None = None
        # Those whose prompts are being computed: they are charged for what they have not had.
        self.under_way: Collection[Sequence] = ()
        # What its requests are charged in.
        self.unit: Unit = Tokens(config.prices)

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
                    node.parent.look_again(node, now)
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
                    self.watcher.changed(organisation)

    def lean(self, node: Node, ratio: float, now: float) -> None:
        """Multiply the weight of a tenant, or of an organisation, in one band.

        It stays as far ahead of its siblings, in service, as it was.
        """
        self.version += 1
        parent = node.above
        if not node.is_merged:
            parent.policy.lean(node, ratio, parent.order, now)
        node.weight *= ratio
        if self.watcher is not None:
            self.watcher.changed(node)

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

    def _grow(self, parent: Node, level: Level, name: str, band: Band) -> Node:
        node = super()._grow(parent, level, name, band)
        if node.policy.accrues and not node.is_merged:
            node.order.unserved = partial(self._unserved, node)
        return node

    def _may_sum_up(self) -> bool:
        tenants, keys, requests = (make_policy(name, self.config) for name in self._levels[2:])
        return (
            all(policy.accrues and not policy.reads_head for policy in (tenants, keys))
            and not requests.keeps_accounts
        )


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
            parent.look_again(node, now)
        if policy.accrues:
            node.counter += cost / node.weight
        else:
            policy.charge(node, cost, parent.order, now)
    return above
