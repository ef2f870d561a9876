"""What is kept of the slots and the KV cache for tenants that hold less than their share.

A tenant that holds more than its share, with what it asks for, does not take the last eighth of
either. Long answers would otherwise fill the machine, and whoever comes then waits until one of
them ends, however soon its turn is. Nothing is kept where nobody else was live lately, and more
where rows had to go for a request larger than that (`scheduler.step.reclaim`).

Of the KV cache those that wait share what others leave of theirs: a third tenant that asks for a
little now and then does not take a third from two that could use it. The eighth is left for those
of their own band alone; a higher one sends rows back itself.
"""

from __future__ import annotations

from math import inf

from engine.kv.block_pool import BlockPool
from scheduler.request import Band
from scheduler.running import KEPT, RunningSet
from scheduler.running.holdings import Weights
from scheduler.sequence import Sequence, Status

# For how long more is kept, once rows had to go for it: they would else come back, and go again. To
# compute them anew takes seconds; to keep a third of the blocks from others for longer costs more.
_REMEMBERED_S = 10.0


class Headroom:
    """Say what a request has to leave free; see the module."""

    def __init__(self, pool: BlockPool, running: RunningSet) -> None:
        self._running = running
        self._num_blocks = pool.num_blocks
        self._num_tokens = pool.num_blocks * pool.block_size
        # By band, as of a version and a step.
        self._asked: dict[Band, tuple[Weights, float]] = {}
        self._asked_at = (-1, -1)
        # What part of the blocks is kept, and when that is no more than usual again.
        self._kept = KEPT
        self._kept_until_s = -inf
        self._kept_for: Sequence | None = None

    def begin(self, now: float) -> None:
        """Begin a step: what a large request was given back is kept for a while, and no longer.

        Nothing is kept for one that ended before it had a token: who leaves pays for little, and
        could keep it from others all the time.
        """
        kept_for = self._kept_for
        if kept_for is not None and kept_for.status is Status.FINISHED:
            if not kept_for.num_output_tokens:
                self._kept_until_s = -inf
            self._kept_for = None
        if now >= self._kept_until_s:
            self._kept = KEPT

    def keep(self, num_blocks: int, sequence: Sequence, now: float) -> None:
        """Keep as much as was given back for a request that needs more than there was."""
        self._kept_for = sequence
        self._kept = max(self._kept, num_blocks / self._num_blocks)
        self._kept_until_s = now + _REMEMBERED_S

    def slots(self, sequence: Sequence) -> int:
        """Count the slots that a request must leave free."""
        running = self._running
        return running.holdings.slots_kept_from(sequence, running.max_num_rows)

    @property
    def most_blocks(self) -> int:
        """Count the blocks that any request is ever to leave free."""
        return round(self._kept * self._num_blocks)

    def blocks_of_share(self, sequence: Sequence) -> int:
        """Count the blocks that a request's tenant is entitled to."""
        return round(self._running.holdings.share(sequence) * self._num_blocks)

    def blocks(self, sequence: Sequence) -> int:
        """Count the blocks that a request above its tenant's share must leave free."""
        share = self._running.holdings.share(sequence)
        return round(min(self._kept, 1.0 - share) * self._num_blocks)

    def is_shared(self, sequence: Sequence) -> bool:
        """Tell whether others than a request's tenant have shares as well."""
        return self._running.holdings.share(sequence) < 1.0

    def has_slots_beyond(self, row: Sequence) -> bool:
        """Tell whether a row's tenant has its share of the slots even without that row."""
        holdings = self._running.holdings
        share = holdings.share(row)
        num_others = len(holdings.rows_beside(row)) - 1
        return share < 1.0 and num_others >= share * self._running.max_num_rows

    def has_blocks_beyond(self, row: Sequence, num_given: int = 0) -> bool:
        """Tell whether a row's tenant has its share of the KV cache even without that row.

        `num_given` tokens of others of its rows go before it.
        """
        share = self._running.holdings.share(row)
        if share >= 1.0:
            return False
        own_tokens = self._tokens_beside(row)[0] - num_given
        own_tokens -= float(self._running.kv_growth.own_by_slot[row.slot])
        if own_tokens < share * self._num_tokens:
            return False
        return own_tokens >= self._share_of_blocks(row) * self._num_tokens

    def is_within_share(self, sequence: Sequence, num_tokens: float) -> bool:
        """Tell whether its tenant's rows, and it with `num_tokens`, are to hold no more KV.

        One that has no row is, whatever it asks for: nothing else would ever let in what is more.
        """
        holdings = self._running.holdings
        share = holdings.share(sequence)
        if share >= 1.0 or not holdings.rows_beside(sequence):
            return True
        num_tokens += sum(self._tokens_beside(sequence))
        if num_tokens <= share * self._num_tokens:
            return True
        return num_tokens <= self._share_of_blocks(sequence) * self._num_tokens

    def _share_of_blocks(self, sequence: Sequence) -> float:
        """Say what part of the KV cache is a tenant's, with what others leave of theirs."""
        holdings = self._running.holdings
        share = holdings.share(sequence)
        weights, tokens = self._asked_for(sequence.request.band)
        own, waiting, idle = share * weights.all, weights.waiting, weights.own_idle
        if not holdings.waits(sequence):
            waiting, idle = waiting + own, idle - own
            tokens -= sum(self._tokens_beside(sequence))
        kept = min(self._kept, max(0.0, idle) / weights.all)
        left = 1.0 - tokens / self._num_tokens - kept
        return max(share, left * own / max(waiting, own))

    def _asked_for(self, band: Band) -> tuple[Weights, float]:
        """Weigh who waits in a band and above, and sum what the others there are to hold."""
        growth, running = self._running.kv_growth, self._running
        now = growth.version, running.num_steps
        if self._asked_at != now:
            self._asked_at = now
            self._asked.clear()
        found = self._asked.get(band)
        if found is None:
            holdings = running.holdings
            tokens = growth.tokens_of_all(holdings.places_of_content(band))
            found = self._asked[band] = holdings.weights_up_to(band), tokens
        return found

    def _tokens_beside(self, sequence: Sequence) -> tuple[float, float]:
        """Sum what the rows of a request's tenant hold of their own, and are to grow by."""
        place = self._running.holdings.place(sequence)
        return (0.0, 0.0) if place < 0 else self._running.kv_growth.tokens_of(place)
