"""Whether a request fits the KV cache beside those that run.

Blocks for all known tokens are taken when a request is admitted, so prefills never block each
other and only decoding can run out. How much must be free beyond that is a choice: nothing but a
small reserve (`prompt`); what all running requests together are predicted to reach at their peak
(`predicted`); or all that each of them may ever draw (`max`), after which nothing is preempted.

What rows of lower bands hold, and are to grow by, is as good as free for a request: they are sent
back once it is needed, and nobody above waits for that. Those that are not to be sent back any more
count for everyone.
"""

from __future__ import annotations

from math import ceil

from engine.contract import EngineInfo
from engine.kv.block_pool import BlockPool
from scheduler.config import ComposerConfig
from scheduler.learn import Lengths
from scheduler.request import Band
from scheduler.running import RunningSet
from scheduler.sequence import Sequence
from scheduler.step.headroom import Headroom


class KvBudget:
    """Admit a sequence's blocks or not."""

    def __init__(
        self,
        config: ComposerConfig,
        info: EngineInfo,
        pool: BlockPool,
        running: RunningSet,
        lengths: Lengths,
    ) -> None:
        self._config = config
        self._pool = pool
        self._running = running
        self._lengths = lengths
        self.headroom = Headroom(pool, running)
        # The last one that was asked for: a request that fits is asked for twice.
        self._expected_of: Sequence | None = None
        self._expected_at = 0
        self._expected_len = 0.0
        self._headroom = round(config.batch_kv_headroom * info.num_blocks)
        # Who was found not to fit since the step began, as of a version of the rows.
        self._unfit: dict[tuple[Sequence, bool], int] = {}

    def begin(self, now: float) -> None:
        """Begin a step: who waits, and what is free, may have changed since the last one."""
        self._unfit.clear()
        self.headroom.begin(now)

    def fit(self, sequence: Sequence, *, keeps: bool = True) -> list[int] | None:
        """Find the blocks of a prefix hit, or None where the rest does not fit beside them.

        It `keeps` the headroom, if that is not for its tenant.

        A sequence that would run alone needs no more than its known tokens. While a step is planned
        and no row comes or goes, blocks are only taken: who did not fit does not fit later.
        """
        if self._unfit.get((sequence, keeps)) == self.version:
            return None
        hit = self._fit(sequence, keeps)
        if hit is None:
            self._unfit[sequence, keeps] = self.version
        return hit

    def _fit(self, sequence: Sequence, keeps: bool) -> list[int] | None:
        hit = self.find(sequence)
        pool = self._pool
        num_new = sequence.table.blocks_missing(sequence.num_tokens) - len(hit)
        num_idle = pool.count_idle(hit)
        reserve = 0
        if len(self._running):
            reserve = self.reserve()
            if sequence.request.band is Band.BATCH:
                reserve += self._headroom
        if num_new + num_idle + reserve > pool.num_free:
            return None
        if not len(self._running):
            return hit
        num_needed = num_new + num_idle
        if self._fits_beside(sequence, num_needed, reserve, self.headroom.most_blocks):
            return hit
        num_tokens = self._tokens_to_hold(sequence, num_needed)
        if not self.headroom.is_within_share(sequence, num_tokens):
            num_kept = self.headroom.blocks(sequence) if keeps else 0
            return hit if self._fits_beside(sequence, num_needed, reserve, num_kept) else None
        if self._fits_beside(sequence, num_needed, reserve, 0):
            return hit
        # What others are to grow by beyond their shares is not for it to leave them.
        has_room = num_tokens <= (self._num_free(sequence) - reserve) * pool.block_size
        return hit if has_room and self.headroom.is_shared(sequence) else None

    @property
    def version(self) -> int:
        """Count what may have changed who is kept out."""
        return self._running.kv_growth.version

    def blocks_to_begin(self, sequence: Sequence) -> int:
        """Count the blocks that must be free for a request whose tenant is within its share."""
        hit = self.find(sequence)
        num_needed = sequence.table.blocks_missing(sequence.num_tokens) - len(hit)
        num_needed += self._pool.count_idle(hit)
        num_tokens = self._tokens_to_hold(sequence, num_needed)
        return ceil(num_tokens / self._pool.block_size) + self.reserve()

    def is_kept_out(self, sequence: Sequence) -> bool:
        """Tell whether what is kept for others is not for a request, whose tenant has its share."""
        headroom = self.headroom
        if headroom.slots(sequence) > 0:
            return True
        num_needed = sequence.table.blocks_missing(sequence.num_tokens)
        # Most that are kept out have no room for what they begin with; that is told in short.
        if not headroom.is_within_share(sequence, num_needed * self._pool.block_size):
            return True
        return not headroom.is_within_share(sequence, self._tokens_to_hold(sequence, num_needed))

    def _fits_beside(
        self, sequence: Sequence, num_needed: int, reserve: int, num_kept: int
    ) -> bool:
        """Tell whether a request that needs so many blocks now leaves others `num_kept` of them."""
        if num_needed + reserve + num_kept > self._num_free(sequence):
            return False
        return self._config.kv_reserve == "prompt" or self._outlasts(sequence, num_needed, num_kept)

    def _num_free(self, sequence: Sequence) -> float:
        """Count the blocks that are free for a request, or will be once it needs them."""
        own_tokens, _ = self._running.kv_growth.tokens_below(sequence.request.band)
        return self._pool.num_free + own_tokens // self._pool.block_size

    def _tokens_to_hold(self, sequence: Sequence, num_needed: int) -> float:
        """Count the tokens that a request is to hold of its own in the end."""
        num_tokens = float(num_needed * self._pool.block_size)
        if self._config.kv_reserve != "prompt":
            num_tokens += max(0.0, self.expected_len(sequence) - sequence.num_tokens)
        return num_tokens

    def surely_fits(self, sequence: Sequence) -> bool:
        """Tell in short that an online sequence fits, whatever it draws and nothing of it cached.

        False says nothing.
        """
        pool = self._pool
        num_blocks = sequence.table.blocks_missing(sequence.limit) + self.reserve()
        growth = self._running.kv_growth.growth_tokens / pool.block_size
        return num_blocks + growth <= pool.num_free

    def find(self, sequence: Sequence) -> list[int]:
        """Find the blocks of a sequence's known tokens that are in the cache."""
        hit = sequence.table.match(sequence.token_ids)
        known = sequence.prompt_logprobs
        if known is not None:
            # What is still to be scored must be computed, whoever computed it before.
            hit = hit[: (len(known) - 1) // self._pool.block_size]
        return hit

    def expected_len(self, sequence: Sequence) -> float:
        """Say how long a sequence is reckoned to get, prompt included."""
        if self._config.kv_reserve != "predicted":
            return sequence.limit
        if sequence is self._expected_of and sequence.num_known == self._expected_at:
            return self._expected_len
        num_output = self._lengths.quantile(
            sequence.request.tenant_id,
            sequence.num_prompt_tokens,
            self._config.kv_quantile,
            generated=sequence.num_output_tokens,
            max_tokens=sequence.request.params.max_tokens,
        )
        self._expected_of, self._expected_at = sequence, sequence.num_known
        self._expected_len = min(float(sequence.limit), sequence.num_prompt_tokens + num_output)
        return self._expected_len

    def reserve(self) -> int:
        """Hold some blocks back for the rows that decode, or they would soon preempt a newcomer."""
        running = self._running
        if self._config.kv_reserve == "max":
            return 0
        return max(1, self._pool.num_blocks // 100, len(running.online_decodes) // 8)

    def _outlasts(self, sequence: Sequence, num_new: int, num_kept: int) -> bool:
        """Tell whether the blocks suffice at the peak; shared ones count once, as they are now."""
        pool, rows = self._pool, self._running.kv_growth
        block_size = pool.block_size
        growth = max(0.0, self.expected_len(sequence) - sequence.num_tokens)
        own_tokens, others_growth = rows.own_tokens, rows.growth_tokens
        num_shared = pool.num_blocks - pool.num_free - own_tokens / block_size
        room = (pool.num_blocks - num_shared - num_kept) * block_size
        band = sequence.request.band
        tokens_below, growth_below = rows.tokens_below(band)
        own_tokens, others_growth = own_tokens - tokens_below, others_growth - growth_below
        new_tokens = num_new * block_size
        if own_tokens + others_growth + new_tokens + growth <= room:
            return True
        if self._config.kv_reserve == "max":
            return False
        return rows.peak_tokens(new_tokens, growth, band) <= room
