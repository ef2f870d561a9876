"""Who gives back what it holds beyond its share, when somebody below its own asks for it.

Answers that grow longer than was expected, and tenants that nobody was live beside until now, fill
what `headroom` would have kept. The rows of tenants that hold more than their share, and would
still without the row, then go back to the queue until the request fits, the youngest first of the
tenant that is furthest ahead. They come back when there is more free than the headroom, so that
nobody takes turns; within shares nobody is sent back for others of its band. Who was promised its
first token sends nobody back: it was told when it would be served, and so were others.
"""

from __future__ import annotations

from collections.abc import Iterator

from engine.kv.block_pool import BlockPool
from scheduler.facts import PreemptionCause
from scheduler.running import RunningSet
from scheduler.sequence import Sequence
from scheduler.step.headroom import Headroom
from scheduler.step.kv_budget import KvBudget
from scheduler.step.preemption import Preemption


class Reclaim:
    """Preempt rows for a request of a tenant below its share; see the module."""

    def __init__(
        self, pool: BlockPool, running: RunningSet, kv_budget: KvBudget, preemption: Preemption
    ) -> None:
        self._pool = pool
        self._running = running
        self._kv_budget = kv_budget
        self._headroom: Headroom = kv_budget.headroom
        self._preemption = preemption

    def make_way(self, head: Sequence) -> list[Sequence]:
        """Preempt what stands in a request's way; returns the victims, to be requeued."""
        if head.request.slo.ttft_s is not None:
            return []
        running, pool, headroom = self._running, self._pool, self._headroom
        lacks_slot, lacks_blocks = running.is_full, pool.num_free < headroom.most_blocks
        if not (lacks_slot or lacks_blocks) or self._kv_budget.is_kept_out(head):
            return []
        if not headroom.is_shared(head):
            return []
        num_blocks = self._kv_budget.blocks_to_begin(head)
        if num_blocks > headroom.most_blocks:
            return []
        rows = sorted(self._rows_above(head), key=self._preemption.claim)
        if pool.num_free + sum(pool.count_sole(r.table.block_ids) for r in rows) < num_blocks:
            return []
        victims: list[Sequence] = []
        while rows and (pool.num_free < num_blocks or running.is_full):
            victim = rows.pop()
            if self._is_above(victim):
                running.preempt(victim, PreemptionCause.SHARE)
                victims.append(victim)
        return victims

    def _is_above(self, row: Sequence) -> bool:
        """Tell whether a row's tenant has its share of what is lacking without that row."""
        if self._running.is_full and self._headroom.has_slots_beyond(row):
            return True
        return self._headroom.has_blocks_beyond(row)

    def _rows_above(self, head: Sequence) -> Iterator[Sequence]:
        """List rows that may go, of tenants above their shares, in the head's band or below."""
        request = head.request
        for row in self._running.holdings.some_rows():
            if row.request.band < request.band or row.request.member == request.member:
                continue
            if self._is_above(row):
                for other in self._running.holdings.rows_beside(row):
                    if self._preemption.may_go(other):
                        yield other
