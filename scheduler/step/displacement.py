"""How much must be sent back for requests that wait in a higher band than some that run.

Slots or blocks must be what the next request lacks, and sending lower rows back must let it in.
Where more of its band wait, room for a few of them is made at once, for each as much as they need
on average: one by one, each would cost a step.
"""

from __future__ import annotations

from engine.kv.block_pool import BlockPool
from scheduler.order import FairTree
from scheduler.request import Band
from scheduler.running import RunningSet
from scheduler.sequence import Sequence
from scheduler.step.kv_budget import KvBudget
from scheduler.step.passing import Passing
from scheduler.step.preemption import Preemption
from scheduler.step.reclaim import Reclaim

_MAX_DISPLACING = 8


class Displacement:
    """Have `preemption` make way for who waits; see the module."""

    def __init__(
        self,
        pool: BlockPool,
        waiting: FairTree,
        running: RunningSet,
        kv_budget: KvBudget,
        preemption: Preemption,
        passing: Passing,
    ) -> None:
        self._pool = pool
        self._waiting = waiting
        self._running = running
        self._kv_budget = kv_budget
        self._preemption = preemption
        self._passing = passing
        # Who was found to fit as it is, while room is made.
        self._fitting: Sequence | None = None
        self._reclaim = Reclaim(pool, running, kv_budget, preemption)

    def make_way(self, now: float) -> list[Sequence]:
        """Preempt for the next request if that lets it in; returns the victims, to be requeued."""
        if not len(self._running):
            return []
        self._fitting = None
        head = self._find_head(now)
        if head is None:
            return self._reclaim_for_next(now)
        budget, band = self._kv_budget, head.request.band
        node = self._waiting.bands[band.name]
        num_wanted = min(node.num_waiting, _MAX_DISPLACING)
        hit = budget.find(head)
        num_blocks = head.table.blocks_missing(head.num_tokens) - len(hit)
        num_blocks += self._pool.count_idle(hit) + budget.reserve()
        victims = self._preemption.displace(band, num_blocks, 1)
        if victims and num_wanted > 1:
            mean_blocks = node.waiting_tokens // (node.num_waiting * self._pool.block_size) + 1
            victims += self._preemption.displace(
                band, num_blocks + (num_wanted - 1) * mean_blocks, num_wanted
            )
        return victims

    def _reclaim_for_next(self, now: float) -> list[Sequence]:
        """Preempt for the next request that may take the headroom, if it does not fit."""
        head = self._passing.next(now)
        if head is None or head.num_in_flight or head is self._fitting:
            return []
        running, budget = self._running, self._kv_budget
        if not running.is_full and (budget.surely_fits(head) or budget.fit(head) is not None):
            return []
        return self._reclaim.make_way(head, now)

    def _find_head(self, now: float) -> Sequence | None:
        """Find the next request if it does not fit beside rows of lower bands."""
        running = self._running
        if not len(self._waiting) or not running.has_below(Band.PRIORITY):
            return None
        head = self._waiting.peek(now)
        if head is None or head.num_in_flight or not running.has_below(head.request.band):
            return None
        budget = self._kv_budget
        if not running.is_full and (budget.surely_fits(head) or budget.fit(head) is not None):
            self._fitting = head
            return None
        return head
