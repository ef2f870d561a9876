"""What is expected of a request when it begins to wait: the figures that policies order by."""

from __future__ import annotations

from scheduler.config import FairnessConfig
from scheduler.sequence import Sequence


class Estimates:
    """Fill in a sequence's expectations."""

    def __init__(self, config: FairnessConfig) -> None:
        self._best_effort_ttft_s = config.best_effort_ttft_s

    def update(self, sequence: Sequence) -> None:
        """Look at a sequence anew; its blocks are matched against the cache."""
        request = sequence.request
        num_found = sequence.table.count_found(sequence.token_ids)
        sequence.num_uncached = sequence.num_tokens - num_found
        ttft_s = request.slo.ttft_s
        if ttft_s is None:
            ttft_s = self._best_effort_ttft_s
        sequence.deadline_s = request.arrival_s + ttft_s
