"""The order of the bands: strict, but each is given its guaranteed share.

While a band waits it earns its share of whatever is served, and pays for what it is served
itself. One that is owed `quantum` or more goes before all others; otherwise the highest band
goes. What a band was served in excess of its share, when nobody else wanted it, is forgotten but
for one quantum, and waiting for nothing earns nothing.

The scheme is deficit round robin's (Shreedhar and Varghese, SIGCOMM 1995) over a strict order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, cast

from scheduler.policies.base import Child, Key, Policy, Siblings
from scheduler.request import Band

# In weighted tokens: a few prompts.
_QUANTUM = 4096.0


class _BandNode(Protocol):
    band: Band


class BandShares(Policy):
    """Order bands, of which each is owed `shares[band]` of the service while it waits."""

    def __init__(self, shares: Mapping[Band, float], *, quantum: float = _QUANTUM) -> None:
        assert sum(shares.values()) < 1.0, "the bands above must be left something"
        self._shares = shares
        self._quantum = quantum

    def key(self, child: Child, now: float) -> Key:
        return (0.0 if child.counter >= self._quantum else 1.0, float(_band_of(child)))

    def activate(self, child: Child, siblings: Siblings, now: float) -> None:
        child.counter = min(child.counter, 0.0)

    def charge(self, child: Child, cost: float, siblings: Siblings, now: float) -> None:
        child.counter = max(child.counter - cost, -self._quantum)
        for sibling in siblings.waiting():
            share = self._shares.get(_band_of(sibling), 0.0)
            if share:
                sibling.counter += share * cost
                siblings.update(sibling, now)


def _band_of(child: Child) -> Band:
    return cast(_BandNode, child).band
