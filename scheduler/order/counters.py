"""What the nodes of a fair tree were charged, as columns.

In every step hundreds of rows draw a token, and each costs its key and its tenant something. As
columns that is three operations for all of them; as attributes of nodes it was a quarter of what
a step costs the scheduler. An entry is a node's: the value of its `counter` (its policy's), its
weight, all that it was ever `served`, and of who shares a band how many requests are `waiting`.
Which node it is of is in `levels`, `bands` and `above`, the entry of its parent; since when it has
had live requests, and some that wait, in `busy_since_s` and `waiting_since_s`, infinity where it
has none. `was_held` notes whose rows were held back for others.
Those of nodes that have gone are given to others, so a node that goes takes its figures along:
somebody may know it still. Who keeps columns of their own by entry are told that it goes
(`scheduler.order.places.Follower`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MIN_ENTRIES = 64
_KEPT = ("values", "weights", "served", "waiting")
_COLUMNS = (*_KEPT, "levels", "bands", "above", "busy_since_s", "waiting_since_s", "was_held")


class Counters:
    """Keep the counters of nodes."""

    def __init__(self, size: int = _MIN_ENTRIES) -> None:
        self.values = np.zeros(size)
        self.weights = np.ones(size)
        self.served = np.zeros(size)
        self.waiting = np.zeros(size)
        self.levels, self.bands = np.zeros((2, size), dtype=np.int8)
        self.above = np.zeros(size, dtype=np.intp)
        self.busy_since_s, self.waiting_since_s = np.full((2, size), np.inf)
        self.was_held = np.zeros(size, dtype=bool)
        # Of many at once, which may turn anybody's order.
        self.num_charges = 0
        self._free: list[int] = []
        self._num_entries = 0

    def open(self) -> int:
        """Make an entry."""
        if self._free:
            entry = self._free.pop()
        else:
            if self._num_entries == len(self.values):
                self._grow()
            entry = self._num_entries
            self._num_entries += 1
        self.values[entry] = self.served[entry] = self.waiting[entry] = 0.0
        self.weights[entry] = 1.0
        self.busy_since_s[entry] = self.waiting_since_s[entry] = np.inf
        self.was_held[entry] = False
        return entry

    def place(self, entry: int, level: int, band: int, above: int) -> None:
        """Say which node an entry is of."""
        self.levels[entry], self.bands[entry], self.above[entry] = level, band, above

    def take_out(self, entry: int) -> Counters:
        """Give an entry back; returns counters that hold what it held, as their only entry."""
        alone = Counters(1)
        only = alone.open()
        for name in _KEPT:
            getattr(alone, name)[only] = getattr(self, name)[entry]
        self._free.append(entry)
        return alone

    def charge(self, entries: NDArray[np.intp], costs: NDArray[np.float64]) -> None:
        """Charge each of `entries`, which may repeat, its cost."""
        self.num_charges += 1
        np.add.at(self.served, entries, costs)
        np.add.at(self.values, entries, costs / self.weights[entries])

    def _grow(self) -> None:
        size = 2 * len(self.values)
        for name in _COLUMNS:
            column = getattr(self, name)
            grown = np.zeros(size, dtype=column.dtype)
            grown[: len(column)] = column
            setattr(self, name, grown)
