"""Whom to send back, and when.

*When blocks run out.* Each row that decodes next must have the block it may need. The victim is
the row with the least claim: of the lowest band, of that band the organisation that is furthest
ahead of its share, of that the tenant that is, and then the youngest; what was promised a pace or
gaps after the tenant's other rows, as it would break that by its wait to come back. A promise moves
nobody's share: of two tenants it makes no difference. A row that was preempted often is pinned: it
goes only when every row is, so that nobody is sent back for ever. In each step that preempts, the
row with the most claim goes on, so the whole always makes progress.

*When a higher band waits.* A request displaces running ones of strictly lower bands where slots or
blocks are what it lacks, and only if sending them back lets it in. What runs on its band's
guaranteed share stays, or the share would be taken back as soon as it was given. Equals never
displace each other, or they would take turns for ever. The batch band is never pinned: it runs on
what others leave.

A victim is recomputed later. Its full blocks stay findable until they are reused, so that is
often free; the engine may keep them elsewhere, since a plan names who was preempted.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from engine.kv.block_pool import BlockPool
from scheduler.config import PreemptionConfig
from scheduler.facts import PreemptionCause
from scheduler.request import Band
from scheduler.running import RunningSet
from scheduler.sequence import Sequence
from scheduler.step.headroom import Headroom

_Share = tuple[float, float]
_Key = tuple[bool, Band, bool, _Share, bool, int]


class Preemption:
    """Choose victims among the running sequences and take their slots and blocks away.

    `over_share` tells how far the organisation of a sequence is ahead of others, and its tenant.
    """

    def __init__(
        self,
        config: PreemptionConfig,
        pool: BlockPool,
        running: RunningSet,
        over_share: Callable[[Sequence], _Share],
    ) -> None:
        self._config = config
        self._pool = pool
        self._running = running
        self._over_share = over_share
        self._headroom = Headroom(pool, running)

    def make_room(self) -> list[Sequence]:
        """Preempt until each row that decodes next can have the block it needs.

        Done before any row of the step is planned, so nothing planned is ever taken back. Rows of
        the batch band are not counted: a step takes along those that there are blocks for.
        Returns: the victims, to be queued again.
        """
        running, pool = self._running, self._pool
        victims: list[Sequence] = []
        # A row needs one block at most: most steps end here without looking at any row.
        while len(running.online_decodes) > pool.num_free:
            if self._blocks_needed() <= pool.num_free:
                break
            victim = self.choose_victim()
            running.preempt(victim, PreemptionCause.BLOCKS)
            victims.append(victim)
        if not victims and self._is_stuck():
            victim = self.choose_victim()
            running.preempt(victim, PreemptionCause.BLOCKS)
            victims.append(victim)
        return victims

    def choose_victim(self) -> Sequence:
        """Find the row that has the least claim to its blocks."""
        return max(self._running, key=self.claim)

    def displace(self, band: Band, num_blocks: int, num_slots: int) -> list[Sequence]:
        """Preempt rows below `band` until so much is free; nobody where that cannot be.

        Returns: the victims, to be queued again.
        """
        running, pool = self._running, self._pool
        lower = [sequence for sequence in running.below(band) if self.may_go(sequence)]
        if running.num_free_slots + len(lower) < num_slots:
            return []
        if pool.num_free < num_blocks:
            # What a victim shares with others stays in use: this counts what it alone has.
            freed = sum(pool.count_sole(s.table.block_ids) for s in lower)
            if pool.num_free + freed < num_blocks:
                return []
        lower.sort(key=self.claim)
        victims: list[Sequence] = []
        while pool.num_free < num_blocks or running.num_free_slots < num_slots:
            if not lower:
                break
            victim = lower.pop()
            running.preempt(victim, PreemptionCause.BAND)
            victims.append(victim)
        return victims

    def claim(self, sequence: Sequence) -> _Key:
        """Rank a row; the one with the least claim to what it holds is the greatest."""
        band = sequence.request.band
        is_above = self._headroom.has_blocks_beyond(sequence)
        is_free = is_above or band is Band.BATCH or not self.is_pinned(sequence)
        over_share = self._over_share(sequence) if is_free else (0.0, 0.0)
        is_paced = sequence.request.slo.is_paced
        return is_free, band, is_above, over_share, not is_paced, sequence.ordinal

    def is_pinned(self, sequence: Sequence) -> bool:
        """Tell whether a request was sent back so often that it stays where it runs."""
        return sequence.num_preemptions >= self._config.max_preemptions

    def may_go(self, sequence: Sequence) -> bool:
        """Tell whether a row may be sent back for who waits."""
        if sequence.request.band is Band.BATCH:
            return True
        return (
            not sequence.is_guaranteed
            and (self._headroom.has_blocks_beyond(sequence) or not self.is_pinned(sequence))
            and self._running.num_steps - sequence.admitted_at_step >= self._config.min_run_steps
        )

    def _blocks_needed(self) -> int:
        rows = self._running.decode_rows
        slots = rows.unpaused(rows.online())
        return int(np.count_nonzero(rows.wants_block(slots, self._pool.block_size)))

    def _is_stuck(self) -> bool:
        """Tell whether only rows of the batch band run and none of them has room to go on."""
        running, pool = self._running, self._pool
        if pool.num_free or running.online_decodes or running.prefilling:
            return False
        if len(running.batch_decodes) < 2:
            return False
        rows = running.decode_rows
        wants = rows.wants_block(rows.batch(), pool.block_size)
        return bool(wants.all())
