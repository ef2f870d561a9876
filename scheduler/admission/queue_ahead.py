"""How much is served before a request that would join the queue now, in the policies' own order.

What waits in higher bands goes first, and lower bands take what they are guaranteed meanwhile. In
its own band it depends on the policy of the tenants:

- Where tenants take turns by the order of their requests (first come, deadlines, ...), it is
  what waits at places before its own, which `TokenLine` sums.
- Where they are served in proportion to their weights, it is water that fills vessels. The
  request is served when its tenant's counter has come to F, what it is now and what the tenant
  has queued ahead of the request over its weight; by then each other tenant j was given
  w_j * (F - v_j), or all it had, if that is less. Tenants are arrays here, so a thousand of
  them cost a few operations.

Both look ahead: what came in lately will go on coming and some of it goes first, and counters rise
as well by the tokens that running requests draw. Both grow with how long the request waits, so
whoever asks says how long that is (`horizon_s`), and asks again with what comes of it.

It learns of each request that joins or leaves, and of whom is charged, from the tree. Places are
those of when a request joined: orders that change as time passes are taken as they were then.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from scheduler.admission.tenant_levels import Inflow, TenantLevels
from scheduler.admission.token_line import Place, TokenLine
from scheduler.order import FairTree, Node
from scheduler.request import Band
from scheduler.sequence import Sequence

_MEAN_OF = 64


class Ahead(NamedTuple):
    """Count tokens that are served first: of higher bands, of others in its own, and its own.

    `share` of the service is guaranteed to its band while higher ones wait, and `lower_share` to
    bands below it.
    """

    higher: float
    others: float
    own: int
    share: float
    lower_share: float


class QueueAhead:
    """Follow the queue of `tree` and tell how much of it goes before a request."""

    def __init__(self, tree: FairTree) -> None:
        self._tree = tree
        self._places: dict[Sequence, Place] = {}
        # When requests joined, in that order; the batch band waits for what is left over.
        self._joined_s: dict[Sequence, float] = {}
        self._departed: list[Sequence] = []
        self._num_returned = 0
        self._mean_tokens = 0.0
        self._lines: dict[Node, TokenLine] = {}
        self._tenants: dict[Band, TenantLevels] = {}
        self._charged: set[Node] = set()
        self._inflows: dict[Band, Inflow] = {}
        for sequence in sorted(tree, key=lambda sequence: sequence.ordinal):
            self.joined(sequence, tree.key_of(sequence), sequence.request.arrival_s)
        tree.watcher = self

    def joined(self, sequence: Sequence, key: Node, now: float) -> None:
        """Learn that a request waits, and its nodes know of it."""
        tenant = key.above
        band = tenant.above
        num_tokens = sequence.num_uncached
        self._mean_tokens += (num_tokens - self._mean_tokens) / (
            _MEAN_OF if self._mean_tokens else 1
        )
        self._num_returned += sequence.was_admitted
        node = _line_node(band, tenant, key)
        place = _place(node, sequence, now)
        self._places[sequence] = place
        if band.band is not Band.BATCH:
            self._joined_s[sequence] = now
        line = self._lines.get(node)
        if line is None:
            line = self._lines[node] = TokenLine()
        line.add(place, num_tokens)
        inflow = self._inflows.get(band.band)
        if inflow is None:
            inflow = self._inflows[band.band] = Inflow(now)
        inflow.add(num_tokens, now)
        tenants = self._tenants.get(band.band)
        if tenants is None:
            tenants = self._tenants[band.band] = TenantLevels(now)
        tenants.add_inflow(tenant, num_tokens, now)

    def left(self, sequence: Sequence, key: Node) -> None:
        """Learn that a request waits no more."""
        tenant = key.above
        node = _line_node(tenant.above, tenant, key)
        line = self._lines[node]
        line.remove(self._places.pop(sequence))
        self._joined_s.pop(sequence, None)
        if not line:
            del self._lines[node]
        self._departed.append(sequence)
        self.changed(tenant)

    def charged(self, tenants: Iterable[Node]) -> None:
        """Learn that the counters of tenants have changed."""
        self._charged.update(tenants)

    def changed(self, tenant: Node) -> None:
        """Learn that the weight or the requests of a tenant have changed."""
        of_band = self._tenants.get(tenant.band)
        if of_band is not None:
            of_band.stale.add(tenant)

    @property
    def oldest_joined_s(self) -> float | None:
        """Say when the one has joined that waits longest, those of the batch band aside."""
        return next(iter(self._joined_s.values()), None)

    def take_changes(self) -> tuple[list[Sequence], int]:
        """Return who has left since the last call, and count those that came back from a slot."""
        changes = self._departed, self._num_returned
        self._departed, self._num_returned = [], 0
        return changes

    def num_requests(self, num_tokens: float) -> float:
        """Tell how many requests so many tokens are: those that wait, then others like the last."""
        waiting = sum(band.waiting_tokens for band in self._tree.bands.values())
        queued = min(num_tokens, float(waiting))
        num_queued = queued * len(self._tree) / waiting if waiting else 0.0
        return num_queued + (num_tokens - queued) / max(1.0, self._mean_tokens)

    def share(self, sequence: Sequence) -> float:
        """Say what part of its band's service is due to the tenant of a request."""
        tenants = self._tenants_of(sequence.request.band)
        if tenants is None:
            return 1.0
        weight = sequence.request.weight
        return weight / (weight + tenants.weight_beside(self._tenant_of(sequence)))

    def before(
        self,
        sequence: Sequence,
        now: float,
        horizon_s: float,
        *,
        draws_per_s: float,
        at_share: bool = False,
    ) -> Ahead:
        """Count what is served before a request that is not in the queue yet gets its first token.

        Args: `horizon_s`: how long that takes. `draws_per_s`: how many tokens each running
        request draws a second. `at_share`: as if its tenant were level with the others, and had
        queued no more than its share of what waits.
        """
        own_band = sequence.request.band
        higher = lower_share = 0.0
        some_band = next(iter(self._tree.bands.values()), None)
        if some_band is not None and some_band.above.policy.spans_bands:
            others = self._standing_before(some_band.above, sequence, now)
            return Ahead(0.0, others, sequence.num_uncached, 0.0, 0.0)
        for band in self._tree.bands.values():
            if not band.num_waiting or band.band == own_band:
                continue
            if band.band < own_band:
                inflow = self._inflows[band.band].tokens_per_s(now)
                higher += band.waiting_tokens + inflow * horizon_s
            else:
                lower_share += self._tree.config.band_shares.get(band.band, 0.0)
        share = self._tree.config.band_shares.get(own_band, 0.0)
        others = self._within_band(sequence, now, horizon_s, draws_per_s, at_share)
        return Ahead(higher, others, sequence.num_uncached, share, lower_share)

    def _within_band(
        self, sequence: Sequence, now: float, horizon_s: float, draws_per_s: float, at_share: bool
    ) -> float:
        request = sequence.request
        band = self._tree.bands.get(request.band.name)
        if band is None:
            return 0.0
        tenant = self._tenant_of(sequence)
        num_own = 0 if tenant is None else tenant.waiting_tokens
        num_due = self.share(sequence) * band.waiting_tokens if at_share else num_own
        if not band.policy.keeps_accounts:
            ahead = self._standing_before(band, sequence, now)
            return max(0.0, ahead - max(0.0, num_own - num_due))
        ahead = 0.0 if tenant is None else self._within_tenant(tenant, sequence, now)
        ahead = min(ahead, num_due)
        prices = self._tree.config.prices
        tenants = self._tenants_of(request.band)
        if tenants is None:
            return ahead
        return ahead + tenants.served_meanwhile(
            tenant,
            (ahead + sequence.num_uncached) * prices.input / request.weight,
            now,
            horizon_s,
            draws_cost_per_s=draws_per_s * prices.output,
            input_price=prices.input,
            is_level=at_share,
        )

    def _tenants_of(self, band: Band) -> TenantLevels | None:
        """Find the tenants of a band, as they are now."""
        self._charged |= self._tree.take_charged()
        if self._charged:
            for other, tenants in self._tenants.items():
                tenants.read_counters([node for node in self._charged if node.band is other])
            self._charged.clear()
        of_band = self._tenants.get(band)
        if of_band is not None:
            of_band.read()
        return of_band

    def _tenant_of(self, sequence: Sequence) -> Node | None:
        band = self._tree.bands.get(sequence.request.band.name)
        return None if band is None else band.children.get(sequence.request.tenant_id)

    def _within_tenant(self, tenant: Node, sequence: Sequence, now: float) -> float:
        """Count what its own tenant has served before it."""
        if not tenant.policy.keeps_accounts:
            return self._standing_before(tenant, sequence, now)
        key = tenant.children.get(sequence.request.key_id)
        ahead = 0.0 if key is None else self._standing_before(key, sequence, now)
        waiting = [child for child in tenant.children.values() if child.num_waiting]
        others = [child for child in waiting if child is not key]
        if not others:
            return ahead
        prices = self._tree.config.prices
        counter = min(child.counter for child in waiting)
        if key is not None:
            counter = max(counter, key.counter)
        counter += (ahead + sequence.num_uncached) * prices.input
        for other in others:
            due = max(0.0, counter - other.counter) / max(prices.input, 1e-9)
            ahead += min(float(other.waiting_tokens), due)
        return ahead

    def _standing_before(self, node: Node, sequence: Sequence, now: float) -> float:
        line = self._lines.get(node)
        if line is None:
            return 0.0
        # What its counter would be; it is not kept, since the tree does the same in time.
        node.policy.activate(sequence, node.order, now)
        return float(line.before(_place(node, sequence, now)))


def _line_node(band: Node, tenant: Node, key: Node) -> Node:
    """Find the node below which all order follows the requests' own."""
    if not band.policy.keeps_accounts:
        return band.above if band.above.policy.spans_bands else band
    return key if tenant.policy.keeps_accounts else tenant


def _place(node: Node, sequence: Sequence, now: float) -> Place:
    return node.policy.rank(sequence, now), not sequence.was_admitted, sequence.ordinal
