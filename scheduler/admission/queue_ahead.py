"""How much is served before a request that would join the queue now, in the policies' own order.

What waits in higher bands goes first, and lower bands take what they are guaranteed meanwhile. In
its own band it depends on the policy of the tenants:

- Where tenants take turns by the order of their requests (first come, deadlines, ...), it is
  what waits at places before its own, which `TokenLine` sums.
- Where they are served in proportion to their weights, it is water that fills vessels. The
  request is served when its tenant's counter has come to F, what it is now and what the tenant
  has queued ahead of the request over its weight; by then each other tenant j was given
  w_j * (F - v_j), or all it had, if that is less. Tenants are arrays here, so a thousand of
  them cost a few operations. Those of an organisation share with each other first; see `sharers`.

Both look ahead: what came in lately will go on coming and some of it goes first, and counters rise
as well by the tokens that running requests draw. Both grow with how long the request waits, so
whoever asks says how long that is (`horizon_s`), and asks again with what comes of it.

It learns of each request that joins or leaves, and of whom is charged, from the tree. Places are
those of when a request joined: orders that change as time passes are taken as they were then.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from scheduler.admission.deadline_lines import DeadlineLines
from scheduler.admission.sharers import Outlook, Sharers, Shares
from scheduler.admission.tenant_levels import Inflow
from scheduler.admission.token_line import Place, TokenLine
from scheduler.order import NEVER, FairTree, Node
from scheduler.request import Band, Request, Sender
from scheduler.sequence import Sequence

_MEAN_OF = 64
# Of a tenant's keys, how many are looked at.
_MAX_KEYS = 128


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
        self.tree = tree
        self._places: dict[Sequence, Place] = {}
        # When requests joined, in that order; the batch band waits for what is left over.
        self._joined_s: dict[Sequence, float] = {}
        self._departed: list[Sequence] = []
        self._num_returned = 0
        self._mean_tokens = 0.0
        self._lines: dict[Node, TokenLine] = {}
        self._sharers = Sharers(tree)
        self._deadlines = DeadlineLines()
        self._inflows: dict[Band, Inflow] = {}
        for sequence in sorted(tree, key=lambda sequence: sequence.ordinal):
            self.joined(sequence, tree.key_of(sequence), sequence.request.arrival_s)
        tree.watcher = self
        tree.followers.add(self)

    def joined(self, sequence: Sequence, key: Node, now: float) -> None:
        """Learn that a request waits, and its nodes know of it."""
        tenant = key.above
        band = tenant.member.above
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
        self._deadlines.joined(band, sequence, now)
        inflow = self._inflows.get(band.band)
        if inflow is None:
            inflow = self._inflows[band.band] = Inflow(now)
        inflow.add(num_tokens, now)
        self._sharers.joined(tenant, num_tokens, now)

    def left(self, sequence: Sequence, key: Node) -> None:
        """Learn that a request waits no more."""
        tenant = key.above
        node = _line_node(tenant.member.above, tenant, key)
        line = self._lines[node]
        line.remove(self._places.pop(sequence))
        self._joined_s.pop(sequence, None)
        self._deadlines.left(sequence)
        if not line:
            del self._lines[node]
        self._departed.append(sequence)
        self.changed(tenant)

    def charged(self, tenants: Iterable[Node]) -> None:
        """Learn that the counters of tenants have changed."""
        self._sharers.charged(tenants)

    def changed(self, tenant: Node) -> None:
        """Learn that the weight or the requests of a tenant, or an organisation's, have changed."""
        self._sharers.changed(tenant)

    def swept(self, node: Node) -> None:
        """Learn that a tenant or an organisation has gone from the tree."""
        self._sharers.swept(node)

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
        waiting = sum(band.waiting_tokens for band in self.tree.bands.values())
        queued = min(num_tokens, float(waiting))
        num_queued = queued * len(self.tree) / waiting if waiting else 0.0
        return num_queued + (num_tokens - queued) / max(1.0, self._mean_tokens)

    def inflow_per_s(self, now: float) -> float:
        """Say how many tokens a second have joined lately, of all bands."""
        return sum(inflow.tokens_per_s(now) for inflow in self._inflows.values())

    def shares(self, request: Request | Sender) -> Shares:
        """Say what part of its band's service is due to who sends a request."""
        return self._sharers.shares(request)

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
        some_band = next(iter(self.tree.bands.values()), None)
        if some_band is not None and some_band.above.policy.spans_bands:
            others = self._standing_before(some_band.above, sequence, now)
            return Ahead(0.0, others, sequence.num_uncached, 0.0, 0.0)
        for band in self.tree.bands.values():
            if not band.num_waiting or band.band == own_band:
                continue
            if band.band < own_band:
                inflow = self._inflows[band.band].tokens_per_s(now)
                higher += band.waiting_tokens + inflow * horizon_s
            else:
                lower_share += self.tree.config.band_shares.get(band.band, 0.0)
        share = self.tree.config.band_shares.get(own_band, 0.0)
        outlook = Outlook(now, horizon_s, draws_per_s, at_share)
        others = self._within_band(sequence, outlook)
        return Ahead(higher, others, sequence.num_uncached, share, lower_share)

    def _within_band(self, sequence: Sequence, outlook: Outlook) -> float:
        request = sequence.request
        band = self.tree.bands.get(request.band.name)
        if band is None:
            return 0.0
        tenant = self.tree.find_tenant(request)
        if not band.policy.keeps_accounts:
            ahead = self._standing_before(band, sequence, outlook.now)
            if not outlook.at_share:
                return ahead
            own = self.tree.find_organisation(request) if request.organisation_id else tenant
            num_own = 0 if own is None else own.waiting_tokens
            num_due = self.shares(request).organisation * band.waiting_tokens
            return max(0.0, ahead - max(0.0, num_own - num_due))
        ahead = 0.0 if tenant is None else self._within_tenant(tenant, sequence, outlook.now)
        if outlook.at_share:
            ahead = min(ahead, self.shares(request).tenant * band.waiting_tokens)
        in_turn = self._sharers.before(request, ahead, sequence.num_uncached, outlook)
        if band.urgent is None or sequence.start_by_s == NEVER:
            return in_turn
        # It goes as soon as the loan lets it and its deadline is the first of those that it lets.
        loan = self.tree.config.borrow_tokens
        on_loan = self._sharers.before(request, ahead, sequence.num_uncached, outlook, loan=loan)
        return min(in_turn, max(on_loan, self._deadlines.before(band, sequence, outlook.now)))

    def _within_tenant(self, tenant: Node, sequence: Sequence, now: float) -> float:
        """Count what its own tenant has served before it."""
        if not tenant.policy.keeps_accounts:
            return self._standing_before(tenant, sequence, now)
        key = tenant.children.get(sequence.request.key_id)
        ahead = 0.0 if key is None else self._standing_before(key, sequence, now)
        num_others = len(tenant.order) - (key is not None and key in tenant.order)
        least = tenant.order.first(now)
        if not num_others or least is None:
            return ahead
        input_price = self.tree.unit.input
        counter = least.counter
        if key is not None:
            counter = max(counter, key.counter)
        counter += (ahead + sequence.num_uncached) * input_price
        served = 0.0
        # Those that have waited longest speak for thousands.
        some = islice((child for child in tenant.order if child is not key), _MAX_KEYS)
        others = [child for child in some if isinstance(child, Node)]
        for other in others:
            due = max(0.0, counter - other.counter) / max(input_price, 1e-9)
            served += min(float(other.waiting_tokens), due)
        num_all = tenant.waiting_tokens - (0 if key is None else key.waiting_tokens)
        return ahead + min(float(num_all), served * num_others / max(1, len(others)))

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
