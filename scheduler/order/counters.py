"""What the nodes of a fair tree were charged, as columns.

In every step hundreds of rows draw a token, and each costs its key and its tenant something. As
columns that is three operations for all of them; as attributes of nodes it was a quarter of what
a step costs the scheduler. An entry is a node's: the value of its `counter` (its policy's), its
weight, all that it was ever `served`, and of who shares a band how many requests are `waiting`.
Those of nodes that have gone are given to others, so a node that goes takes its figures along:
somebody may know it still.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MIN_ENTRIES = 64
_COLUMNS = ("values", "weights", "served", "waiting")


class Counters:
    """Keep the counters of nodes."""

    def __init__(self, size: int = _MIN_ENTRIES) -> None:
        self.values = np.zeros(size)
        self.weights = np.ones(size)
        self.served = np.zeros(size)
        self.waiting = np.zeros(size)
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
        return entry

    def take_out(self, entry: int) -> Counters:
        """Give an entry back; returns counters that hold what it held, as their only entry."""
        alone = Counters(1)
        only = alone.open()
        for name in _COLUMNS:
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
