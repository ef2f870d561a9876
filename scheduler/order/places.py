"""The places of a fair tree: found, made when a request first needs them, and forgotten.

    root ─ band ─ organisation ─ tenant ─ key

A tenant that belongs to no organisation stands beside them, right below its band and with its own
weight, so that a level nobody uses costs nothing.

Neighbouring levels with the same policy are one where that policy allows it (see
`scheduler.policies.base`): `fcfs` alone is one queue a band. Their nodes still hold the accounts,
and share the order of the uppermost.

Nodes are made when a request first needs them and kept while they wait or run, and as long as
their policy would miss what it knows of them. Idle ones are swept once there are many: each request
that comes has a few looked at, one after the other, so that none of them pays for thousands.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Protocol
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from scheduler.config import FairnessConfig
from scheduler.order.borrowing import Soonest
from scheduler.order.counters import Counters
from scheduler.order.siblings import Order
from scheduler.order.tree_node import Level, Node
from scheduler.policies.bands import BandShares
from scheduler.policies.registry import levels_of, make_policy
from scheduler.request import Band, Request, Sender

_MIN_SWEEP = 1024
# Twice as many as a request may make, or they would outnumber the rest.
_SWEEP_STRIDE = 6


class Follower(Protocol):
    """Remember something of tenants and organisations outside the tree, and forget it with them."""

    def swept(self, node: Node) -> None:
        """Learn that one goes, whose entry may be another's next."""
        ...


class Places:
    """Hold the nodes of a tree whose levels are ordered by the policies of a configuration."""

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
        # All nodes but bands, the one that is to be looked at next first.
        self._swept: deque[Node] = deque()
        # Weak, since a change of configuration makes others and leaves the tree.
        self.followers: WeakSet[Follower] = WeakSet()

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

    def find_organisation(self, request: Request | Sender) -> Node | None:
        """Find the organisation that a request is from, if it has one that is known."""
        return self._organisations.get((request.band, request.organisation_id))

    def find_tenant(self, request: Request | Sender) -> Node | None:
        """Find the tenant that a request is from, if it is known."""
        return self.find_account(request.band, request.organisation_id, request.tenant_id)

    def find_account(self, band: Band, organisation_id: str, tenant_id: str) -> Node | None:
        """Find a tenant, or with an empty `tenant_id` an organisation, if it is known."""
        above: Node | None
        if organisation_id:
            above = self._organisations.get((band, organisation_id))
        else:
            above = self._root.children.get(band.name)
        return above if above is None or not tenant_id else above.children.get(tenant_id)

    def find_member(self, request: Request) -> Node | None:
        """Find who shares its band with others: its organisation, or a tenant of none."""
        if request.organisation_id:
            return self.find_organisation(request)
        return self.find_tenant(request)

    @property
    def columns(self) -> Counters:
        """Hold what is known of all nodes by their entries; look, but leave changing them."""
        return self._counters

    def node_of(self, entry: int) -> Node:
        """Find the node that has an entry."""
        return self._node_of_entry[entry]

    def find_entry(self, entry: int) -> Node | None:
        """Find the node that has an entry, if one has."""
        return self._node_of_entry.get(entry)

    def weights_of(self, tenants: NDArray[np.intp]) -> NDArray[np.float64]:
        """Look the weights of tenants, or organisations, up by their entries."""
        return self._counters.weights[tenants]

    def num_waiting_of(self, tenants: NDArray[np.intp]) -> NDArray[np.float64]:
        """Count what waits of organisations, and of tenants of none, by their entries."""
        return self._counters.waiting[tenants]

    def _place_of(self, request: Request, now: float) -> Node:
        """Find the key that pays for a request, or make it; weights are those of the request."""
        if len(self._swept) >= _MIN_SWEEP:
            self._sweep(now)
        assert request.weight > 0.0, "shares are positive"
        band = above = self._child(self._root, Level.BAND, request.band.name, request.band)
        if request.organisation_id:
            assert request.organisation_weight > 0.0, "shares are positive"
            above = self._child(band, Level.ORGANISATION, request.organisation_id, request.band)
            above.weight = request.organisation_weight
        tenant = self._child(above, Level.TENANT, request.tenant_id, request.band)
        tenant.weight = request.weight
        return self._child(tenant, Level.KEY, request.key_id, request.band)

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
        self._counters.place(node.entry, level, band, parent.entry)
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
            if node.level is not Level.KEY:
                for follower in self.followers:
                    follower.swept(node)
            node.leave()
