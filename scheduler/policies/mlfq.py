"""A multi-level feedback queue with skip-join: what has run little goes first.

Level k is for requests that have run up to `quantum_tokens * 2**k`. A new one enters at the first
level whose quantum holds its prefill, skipping those that it would only fall through; one that
was preempted comes back at the level of what it has run. Within a level the one that was not
served for longest goes first, and after `promotion_s` it goes with the highest level: no length
has to be predicted, and nobody starves.

A token that was computed counts once, and a token that was drawn once more.

Source: FastServe (Wu et al., NSDI 2026) for the skip; the times are those of its comparisons.
"""

from __future__ import annotations

import math

from scheduler.policies.base import Child, Key, Policy, Siblings, require_positive

_MAX_LEVEL = 16


class Mlfq(Policy):
    """Order children by the level of their heads, and by when they were last served."""

    def __init__(self, *, quantum_tokens: float = 128.0, promotion_s: float = 3.0) -> None:
        require_positive(quantum_tokens=quantum_tokens, promotion_s=promotion_s)
        self._quantum_tokens = quantum_tokens
        self._promotion_s = promotion_s

    def key(self, child: Child, now: float) -> Key:
        return (child.counter,)

    def class_of(self, child: Child, now: float) -> int:
        head = child.head(now)
        num_ran = max(head.num_uncached, head.num_ran + head.num_output_tokens)
        level = math.ceil(math.log2(max(1.0, num_ran / self._quantum_tokens)))
        return min(level, _MAX_LEVEL)

    def rank(self, child: Child, now: float) -> Key:
        unserved_since_s = child.counter
        if now - unserved_since_s > self._promotion_s:
            return (0.0, unserved_since_s)
        return (float(self.class_of(child, now)), unserved_since_s)

    def activate(self, child: Child, siblings: Siblings, now: float) -> None:
        child.counter = now

    def charge(self, child: Child, cost: float, siblings: Siblings, now: float) -> None:
        if cost > 0.0:
            child.counter = now
