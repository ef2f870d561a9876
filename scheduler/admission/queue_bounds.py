"""How long the queue may get, and how much of it a tenant may have.

In requests there is a bound for all, of which the last tenth is for tenants that hold less than
their share, newcomers included. In tokens a tenant's queue is bounded by a part of what is still
free (Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches",
1998): one that floods never fills the queue, and one that has nothing in it finds room.

The tenants of an organisation share what it may have. One that has nothing in the queue still
finds room where others of its organisation have taken that, but no more than as much again; and
half of the last tenth is for organisations that hold less than their share.

Whose fault a full queue is goes by shares too: the tenant's where it, or its organisation, has more
than its own.
"""

from __future__ import annotations

from typing import NamedTuple

from scheduler.admission.queue_ahead import QueueAhead
from scheduler.config import AdmissionConfig
from scheduler.order import FairTree, Node
from scheduler.request import Request, Sender
from scheduler.running import RunningSet

# What part of the places in the queue anybody may take.
_SHARED_PLACES = 0.9
# And what part any tenant may that holds less than its share, whatever its organisation has.
_TENANTS_PLACES = 0.95


class Excess(NamedTuple):
    """Say why the queue has no room, by how many tokens, and whether that is the tenant's doing."""

    kind: str
    reason: str
    num_tokens: float
    is_tenants_own: bool


class QueueBounds:
    """Keep a queue within its bounds."""

    def __init__(
        self, config: AdmissionConfig, tree: FairTree, running: RunningSet, queue: QueueAhead
    ) -> None:
        self._config = config
        self._tree = tree
        self._running = running
        self._queue = queue

    def exceeded_by(
        self, sender: Sender | Request, num_tokens: float, *, num_requests: int = 1
    ) -> Excess | None:
        """Say what requests of a sender exceed that would join, of so many tokens, if anything."""
        tenant = self._tree.find_tenant(sender)
        organisation = self._tree.find_organisation(sender)
        return self._in_requests(sender, num_requests, organisation, tenant) or self._in_tokens(
            sender, num_tokens, num_requests, organisation, tenant
        )

    def _in_requests(
        self,
        sender: Sender | Request,
        num_requests: int,
        organisation: Node | None,
        tenant: Node | None,
    ) -> Excess | None:
        most = self._config.max_num_queued
        num_waiting = self._tree.num_live - len(self._running)
        # When the last of them would join.
        num_queued = num_waiting + num_requests - 1
        if num_queued < _SHARED_PLACES * most:
            return None
        shares = self._queue.shares(sender)
        if num_queued >= most:
            what = "is full" if num_requests == 1 else f"has no room for {num_requests} more"
            reason = f"The queue {what}: {num_waiting} requests wait, of at most {most}."
            is_own = any(
                share < 1.0 and _num_waiting(node) + num_requests - 1 > share * num_queued
                for node, share in ((organisation, shares.organisation), (tenant, shares.tenant))
            )
            return Excess("queue_requests", reason, num_requests, is_own)
        limits = [("tenant", tenant, shares.tenant)]
        if num_queued >= _TENANTS_PLACES * most:
            limits.append(("organisation", organisation, shares.organisation))
        for whose, node, share in limits:
            limit = share / (1.0 + share) * most
            own = _num_waiting(node)
            if (own or num_requests > 1) and own + num_requests > limit:
                reason = f"The queue is nearly full, and {own} requests of your "
                reason += f"{whose} wait already, of at most {int(limit)} then."
                return Excess("queue_requests", reason, num_requests, True)
        return None

    def _in_tokens(
        self,
        sender: Sender | Request,
        num_tokens: float,
        num_requests: int,
        organisation: Node | None,
        tenant: Node | None,
    ) -> Excess | None:
        bound = self._config.max_queued_tokens
        if bound is None:
            return None
        queued = sum(other.waiting_tokens for other in self._tree.bands.values())
        if not queued:
            return None
        shares = self._queue.shares(sender)
        free = self._config.tenant_queue_alpha * max(0, bound - queued)
        for whose, node, share, limit in (
            ("tenant", tenant, shares.tenant, shares.tenant * free),
            ("organisation", organisation, shares.organisation, 2 * shares.organisation * free),
        ):
            own = 0 if node is None else node.waiting_tokens
            if (own or num_requests > 1) and own + num_tokens > limit:
                reason = f"{own} tokens of your {whose} wait already, of at most "
                reason += f"{round(limit)} now."
                is_own = own + num_tokens > share * bound and share < 1.0
                return Excess("queue_tokens", reason, own + num_tokens - limit, is_own)
        if queued + num_tokens > bound:
            reason = f"The queue is full: {queued} tokens wait, of at most {bound}."
            return Excess("queue_tokens", reason, queued + num_tokens - bound, False)
        return None


def _num_waiting(node: Node | None) -> int:
    return 0 if node is None else node.num_waiting
