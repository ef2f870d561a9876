"""Deficit longest prefix match: among those with a deficit left, the longest cached prefix.

The service that children get is cut into rounds of `quantum` weighted tokens, for a weight of
one. In a round, the child goes first whose head finds most of its tokens in the prefix cache; a
child that has used up its quantum, and what it overdrew, is in a later round. A round is over when
nobody who waits has any of it left, and begins for everyone who has used it up at once, waiting
or not. So the cache is used well within a round, and rounds are fair: with U the largest cost
that is served at once, two children that both wait are served equally within 2 (U + quantum). A
small quantum is the virtual token counter, an endless one the longest prefix alone.

The deficit of the paper is what a counter still lacks to the end of its round. A child that
begins to wait is lifted to the beginning of the round that others are in: an idle child keeps its
debt, and never has more than one quantum to spend. Costs are in the weighted tokens of the
accounts (an output token costs two by default), not in single tokens as in the paper.

Source: Cao et al., "Locality-aware Fair Scheduling in LLM Serving", 2025.
"""

from __future__ import annotations

import math

from scheduler.policies.base import Child, Key, Siblings, require_positive
from scheduler.policies.lpm import num_cached
from scheduler.policies.vtc import Vtc


class Dlpm(Vtc):
    """Order children by the round that they are in, then by the cached prefixes of their heads."""

    reads_head = True

    def __init__(self, *, quantum: float = 4096.0) -> None:
        super().__init__()
        require_positive(quantum=quantum)
        self._quantum = quantum

    def key(self, child: Child, now: float) -> Key:
        return (child.counter // self._quantum, -num_cached(child.head(now)))

    def lead(self, child: Child, first: Child) -> float:
        end_of_round = (first.counter // self._quantum + 1) * self._quantum
        return max(0.0, child.counter - end_of_round) * child.weight

    def _floor(self, siblings: Siblings, now: float) -> float:
        return math.floor(super()._floor(siblings, now) / self._quantum) * self._quantum
