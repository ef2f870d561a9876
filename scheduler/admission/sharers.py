"""Who shares the service of a band: organisations and tenants without one, and tenants within one.

Each band and each organisation has its `TenantLevels`, kept up to date here by what the tree tells.
What goes before a request is found from below: beside the other tenants of its organisation first,
and all that comes to is what the organisation has queued ahead of the request beside others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from scheduler.admission.tenant_levels import TenantLevels
from scheduler.order import FairTree, Level, Node
from scheduler.request import Request, Sender

_MIN_KEPT = 64


class Shares(NamedTuple):
    """Say what part of its band's service is due to an organisation, and to a tenant of it.

    A tenant of no organisation stands for both.
    """

    organisation: float
    tenant: float


class Outlook(NamedTuple):
    """Say when a request is looked at and how far ahead, and what running requests draw meanwhile.

    With `at_share`, as if its tenant and its organisation were level with others and had queued no
    more than their shares of what waits.
    """

    now: float
    horizon_s: float
    draws_per_s: float
    at_share: bool


class Sharers:
    """Know who shares what in `tree`."""

    def __init__(self, tree: FairTree) -> None:
        self._tree = tree
        self._levels: dict[Node, TenantLevels] = {}
        self._charged: set[Node] = set()
        self._num_kept = 0

    def joined(self, tenant: Node, num_tokens: int, now: float) -> None:
        """Learn that a request waits."""
        for node in _with_member(tenant):
            levels = self._levels.get(node.above)
            if levels is None:
                self._forget_idle()
                levels = self._levels[node.above] = TenantLevels(now)
            levels.add_inflow(node, num_tokens, now)

    def changed(self, tenant: Node) -> None:
        """Learn that the weight or the requests of a tenant, or of its organisation, changed."""
        for node in _with_member(tenant):
            levels = self._levels.get(node.above)
            if levels is not None:
                levels.stale.add(node)

    def charged(self, tenants: Iterable[Node]) -> None:
        """Learn that the counters of tenants have changed, and so those of their organisations."""
        self._charged.update(tenants)

    def swept(self, node: Node) -> None:
        """Learn that a tenant or an organisation has gone from the tree.

        Where nobody asks, what is to be read would else be all that ever came.
        """
        self._charged.discard(node)
        levels = self._levels.get(node.above)
        if levels is not None:
            levels.swept(node)

    def shares(self, request: Request | Sender) -> Shares:
        """Say what is due to who sends a request, beside those that wait or run."""
        self._read_counters()
        tenant = self._tree.find_tenant(request)
        band = self._tree.bands.get(request.band.name)
        if not request.organisation_id:
            share = self._share(band, tenant, request.weight)
            return Shares(share, share)
        organisation = self._tree.find_organisation(request)
        share = self._share(band, organisation, request.organisation_weight)
        return Shares(share, share * self._share(organisation, tenant, request.weight))

    def before(
        self,
        request: Request,
        own_ahead: float,
        num_tokens: int,
        outlook: Outlook,
        *,
        loan: float = 0.0,
    ) -> float:
        """Count the tokens of its band that go before a request of `num_tokens`.

        `own_ahead` of them are its tenant's, which may go ahead of its turn by `loan`.
        """
        self._read_counters()
        ahead = own_ahead
        tenant = self._tree.find_tenant(request)
        band = self._tree.bands[request.band.name]
        member, weight = tenant, request.weight
        if request.organisation_id:
            member, weight = self._tree.find_organisation(request), request.organisation_weight
            ahead += self._beside(
                member, tenant, (ahead + num_tokens - loan) / request.weight, outlook
            )
            if outlook.at_share:
                ahead = min(ahead, self.shares(request).organisation * band.waiting_tokens)
        return ahead + self._beside(band, member, (ahead + num_tokens - loan) / weight, outlook)

    def _share(self, above: Node | None, own: Node | None, weight: float) -> float:
        levels = self._levels_of(above)
        return 1.0 if levels is None else weight / (weight + levels.weight_beside(own))

    def _beside(
        self, above: Node | None, own: Node | None, own_tokens: float, outlook: Outlook
    ) -> float:
        """Count what others below `above` are served until `own` was, `own_tokens` for a weight.

        Those are below zero where a loan lets it go before its turn.
        """
        levels = self._levels_of(above)
        if levels is None:
            return 0.0
        unit = self._tree.unit
        return levels.served_meanwhile(
            own,
            own_tokens * unit.input,
            outlook.now,
            outlook.horizon_s,
            draws_cost_per_s=outlook.draws_per_s * unit.output,
            input_price=unit.input,
            is_level=outlook.at_share,
        )

    def _levels_of(self, node: Node | None) -> TenantLevels | None:
        """Find who shares the service of a node, as they are now."""
        levels = None if node is None else self._levels.get(node)
        if levels is not None:
            levels.read()
        return levels

    def _read_counters(self) -> None:
        """Look at the counters of who was charged."""
        self._charged |= self._tree.take_charged()
        if not self._charged:
            return
        changed: dict[Node, set[Node]] = {}
        for tenant in self._charged:
            for node in _with_member(tenant):
                changed.setdefault(node.above, set()).add(node)
        self._charged.clear()
        for above, nodes in changed.items():
            levels = self._levels.get(above)
            if levels is not None:
                levels.read_counters(nodes)

    def _forget_idle(self) -> None:
        """Forget what organisations have sent that have nothing left, once they are many."""
        if len(self._levels) >= 2 * self._num_kept + _MIN_KEPT:
            self._levels = {
                node: levels
                for node, levels in self._levels.items()
                if node.num_live or node.level is Level.BAND
            }
            self._num_kept = len(self._levels)


def _with_member(tenant: Node) -> tuple[Node, ...]:
    member = tenant.member
    return (tenant,) if member is tenant else (tenant, member)
