"""Whom to send back when KV blocks run out while decoding.

The victim is the youngest row of the lowest band. A row that was preempted twice is pinned: it
goes only when every row is, so that nobody is sent back for ever. In each step that preempts,
the oldest row of the highest band goes on, so the whole always makes progress. A victim is
recomputed later; its full blocks stay findable until they are reused, so that is often free.
"""

from __future__ import annotations

from engine.kv.block_pool import BlockPool
from scheduler.running import RunningSet
from scheduler.sequence import Sequence

MAX_PREEMPTIONS = 2


def make_room(running: RunningSet, pool: BlockPool) -> list[Sequence]:
    """Preempt until each row that decodes next can have the block it needs.

    Done before any row of the step is planned, so nothing planned is ever taken back.
    Returns: the victims, to be queued again.
    """
    victims: list[Sequence] = []
    # A row needs one block at most: most steps end here without looking at any row.
    while len(running.decoding) > pool.num_free:
        if _blocks_needed(running, pool.block_size) <= pool.num_free:
            break
        victim = choose_victim(running)
        running.preempt(victim)
        victims.append(victim)
    return victims


def choose_victim(running: RunningSet) -> Sequence:
    """Find the row that has the least claim to its blocks."""
    return max(
        (*running.decoding, *running.prefilling),
        key=lambda s: (s.num_preemptions < MAX_PREEMPTIONS, s.request.band, s.ordinal),
    )


def _blocks_needed(running: RunningSet, block_size: int) -> int:
    return sum(
        not (sequence.num_tokens - 1) % block_size and sequence.num_tokens < sequence.pause_at
        for sequence in running.decoding
    )
