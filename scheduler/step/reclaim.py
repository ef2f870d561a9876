"""Who gives back what it holds beyond its share, when somebody below its own asks for it.

Answers that grow longer than was expected, and tenants that nobody was live beside until now, fill
what `headroom` would have kept. The rows of tenants that hold more than their share, and would
still without the row, then go back to the queue until the request fits, the youngest first of the
tenant that is furthest ahead. They come back when there is more free than the headroom, so that
nobody takes turns, and after what is larger than that the headroom is as large for a while; within
shares nobody is sent back for others of its band. Who was promised its first token sends nobody
back: it was told when it would be served, and so were others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from engine.kv.block_pool import BlockPool
from scheduler.facts import PreemptionCause
from scheduler.request import Member
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

    def make_way(self, head: Sequence, now: float) -> list[Sequence]:
        """Preempt what stands in a request's way; returns the victims, to be requeued."""
        if head.request.slo.ttft_s is not None:
            return []
        headroom, kv_budget = self._headroom, self._kv_budget
        if kv_budget.is_kept_out(head) or not headroom.is_shared(head):
            return []
        num_blocks = kv_budget.blocks_to_begin(head)
        most_blocks = max(headroom.most_blocks, headroom.blocks_of_share(head))
        lacks_blocks = self._pool.num_free < num_blocks
        if num_blocks > most_blocks or not (lacks_blocks or self._running.is_full):
            return []
        rows = sorted(self._rows_above(head), key=self._preemption.claim, reverse=True)
        num_free = self._pool.num_free
        if num_free + sum(self._pool.count_sole(r.table.block_ids) for r in rows) < num_blocks:
            return []
        victims, num_given = self._choose(rows, num_blocks)
        if victims and num_blocks > headroom.most_blocks:
            # What does not let it in would be given back, and taken again.
            if num_free + num_given < num_blocks:
                return []
            headroom.keep(num_blocks, head, now)
        for victim in victims:
            self._running.preempt(victim, PreemptionCause.SHARE)
        return victims

    def _choose(self, rows: Iterable[Sequence], num_blocks: int) -> tuple[list[Sequence], int]:
        """Choose the first rows that may go, until a request fits; returns their blocks as well."""
        lacks_slot, num_lacking = self._running.is_full, num_blocks - self._pool.num_free
        own_tokens = self._running.kv_growth.own_by_slot
        given: Counter[Member] = Counter()
        victims: list[Sequence] = []
        num_given = 0
        for row in rows:
            if num_given >= num_lacking and not lacks_slot:
                break
            member = row.request.member
            if self._is_above(row, given[member], lacks_slot=lacks_slot):
                victims.append(row)
                given[member] += int(own_tokens[row.slot])
                num_given += self._pool.count_sole(row.table.block_ids)
                lacks_slot = False
        return victims, num_given

    def _is_above(self, row: Sequence, num_given: int = 0, *, lacks_slot: bool) -> bool:
        """Tell whether a row's tenant has its share of what is lacking without that row."""
        if lacks_slot and self._headroom.has_slots_beyond(row):
            return True
        return self._headroom.has_blocks_beyond(row, num_given)

    def _rows_above(self, head: Sequence) -> Iterator[Sequence]:
        """List rows that may go, of tenants above their shares, in the head's band or below."""
        request = head.request
        for row in self._running.holdings.some_rows():
            if row.request.band < request.band or row.request.member == request.member:
                continue
            if self._is_above(row, lacks_slot=self._running.is_full):
                for other in self._running.holdings.rows_beside(row):
                    if self._preemption.may_go(other):
                        yield other
