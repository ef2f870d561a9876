"""Longest prefix match: what the prefix cache holds most of goes first, while it holds it.

A request that waits gains on the others by `aging_tokens_per_s`, or cold requests would starve as
long as warm ones come. Both grow at the same pace for all, so the order does not change as time
passes: that of what is cached, less the pace times the arrival.

What is cached is looked up when a request begins to wait. Source: SGLang's `lpm`; its issue 31954
measures the starvation.
"""

from __future__ import annotations

from scheduler.policies.base import Child, Key, Policy, require_positive
from scheduler.sequence import Sequence


class Lpm(Policy):
    """Order children by how much of their heads is cached, and by how long they have waited."""

    def __init__(self, *, aging_tokens_per_s: float = 100.0) -> None:
        require_positive(aging_tokens_per_s=aging_tokens_per_s)
        self._pace = aging_tokens_per_s

    def key(self, child: Child, now: float) -> Key:
        head = child.head(now)
        return (self._pace * head.request.arrival_s - num_cached(head),)


def num_cached(sequence: Sequence) -> int:
    """Count the tokens that a sequence need not compute."""
    return sequence.num_tokens - sequence.num_uncached
