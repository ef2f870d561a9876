"""How long the queue may get, and how much of it a tenant may have.

In requests there is a bound for all, of which the last tenth is for tenants that hold less than
their share, newcomers included. In tokens a tenant's queue is bounded by a part of what is still
free (Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches",
1998): one that floods never fills the queue, and one that has nothing in it finds room.

Whose fault a full queue is goes by shares too: the tenant's where it has more than its own.
"""

from __future__ import annotations

from typing import NamedTuple

from scheduler.admission.queue_ahead import QueueAhead
from scheduler.config import AdmissionConfig
from scheduler.order import FairTree, Node
from scheduler.running import RunningSet
from scheduler.sequence import Sequence

# What part of the places in the queue anybody may take.
_SHARED_PLACES = 0.9


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

    def exceeded_by(self, sequence: Sequence) -> Excess | None:
        """Say what a request that would join exceeds, if anything."""
        band = self._tree.bands.get(sequence.request.band.name)
        tenant = None if band is None else band.children.get(sequence.request.tenant_id)
        return self._in_requests(sequence, tenant) or self._in_tokens(sequence, tenant)

    def _in_requests(self, sequence: Sequence, tenant: Node | None) -> Excess | None:
        most = self._config.max_num_queued
        num_queued = self._tree.num_live - len(self._running)
        if num_queued >= most:
            share = self._queue.share(sequence)
            num_own = 0 if tenant is None else tenant.num_waiting
            reason = f"The queue is full: {num_queued} requests wait, of at most {most}."
            is_own = num_own > share * num_queued and share < 1.0
            return Excess("queue_requests", reason, 1.0, is_own)
        if tenant is not None and num_queued >= _SHARED_PLACES * most:
            share = self._queue.share(sequence)
            limit = share / (1.0 + share) * most
            if tenant.num_waiting + 1 > limit:
                reason = f"The queue is nearly full, and {tenant.num_waiting} requests of your "
                reason += f"tenant wait already, of at most {int(limit)} then."
                return Excess("queue_requests", reason, 1.0, True)
        return None

    def _in_tokens(self, sequence: Sequence, tenant: Node | None) -> Excess | None:
        bound = self._config.max_queued_tokens
        if bound is None:
            return None
        queued = sum(other.waiting_tokens for other in self._tree.bands.values())
        if not queued:
            return None
        own = 0 if tenant is None else tenant.waiting_tokens
        share = self._queue.share(sequence)
        num_tokens = sequence.num_uncached
        limit = share * self._config.tenant_queue_alpha * max(0, bound - queued)
        if own and own + num_tokens > limit:
            reason = f"{own} tokens of your tenant wait already, of at most {round(limit)} now."
            is_own = own + num_tokens > share * bound and share < 1.0
            return Excess("queue_tokens", reason, own + num_tokens - limit, is_own)
        if queued + num_tokens > bound:
            reason = f"The queue is full: {queued} tokens wait, of at most {bound}."
            return Excess("queue_tokens", reason, queued + num_tokens - bound, False)
        return None
