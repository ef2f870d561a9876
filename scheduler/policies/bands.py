"""The order of the bands: strict, but each is given its guaranteed share.

While a band waits it earns its share of whatever is served, and pays for what it is served
itself. One that is owed `quantum` or more goes before all others; otherwise the highest band
goes. Waiting for nothing earns nothing, and what was earned is lost when nothing waits any more.

What a band is served beyond its share is forgotten but for one quantum where no higher band
wanted it, and but for a few where one did: a band that has taken more than it was guaranteed
makes up for it, but a long past of plenty is no reason to starve it. A refund gives back what a
band owes, never more: cancelling cannot earn a place before higher bands.

The scheme is deficit round robin's (Shreedhar and Varghese, SIGCOMM 1995) over a strict order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter

from scheduler.policies.base import Child, Key, Policy, Siblings
from scheduler.request import Band

# In weighted tokens: a few prompts.
QUANTUM = 4096.0
_MAX_DEBT_QUANTA = 4
# Of the nodes that it orders, which are bands.
_band_of: Callable[[Child], Band] = attrgetter("band")


class BandShares(Policy):
    """Order bands, of which each is owed `shares[band]` of the service while it waits."""

    reads_head = False
    keeps_accounts = True

    def __init__(self, shares: Mapping[Band, float], *, quantum: float = QUANTUM) -> None:
        assert sum(shares.values()) < 1.0, "the bands above must be left something"
        # By band: a list, since hashing a band is a call.
        self._shares = [shares.get(band, 0.0) for band in Band]
        self._quantum = quantum

    def key(self, child: Child, now: float) -> Key:
        return (0.0 if child.counter >= self._quantum else 1.0, float(_band_of(child)))

    def activate(self, child: Child, siblings: Siblings, now: float) -> None:
        child.counter = min(child.counter, 0.0)

    def charge(self, child: Child, cost: float, siblings: Siblings, now: float) -> None:
        band, quantum, shares = _band_of(child), self._quantum, self._shares
        is_contended = False
        # First what is earned: a prompt of a hundred thousand tokens would else leave its own band
        # owed a tenth of it.
        for sibling in siblings.waiting():
            other = _band_of(sibling)
            is_contended = is_contended or other < band
            share = shares[other]
            if share:
                before = sibling.counter
                sibling.counter = after = before + share * cost
                if (after >= quantum) is not (before >= quantum):
                    siblings.update(sibling, now)
        if cost < 0.0:
            child.counter = min(child.counter - cost, max(child.counter, 0.0))
            siblings.update(child, now)
        else:
            max_debt = quantum * (_MAX_DEBT_QUANTA if is_contended else 1)
            child.counter = max(child.counter - cost, min(child.counter, -max_debt))
