"""What the nodes of a fair tree were charged, as columns.

In every step hundreds of rows draw a token, and each costs its key and its tenant something. As
columns that is three operations for all of them; as attributes of nodes it was a quarter of what
a step costs the scheduler. An entry is a node's: the value of its `counter` (its policy's), its
weight, and all that it was ever `served`. Entries of nodes that have gone are given to others.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MIN_ENTRIES = 64


class Counters:
    """Keep the counters of nodes."""

    def __init__(self) -> None:
        self.values = np.zeros(_MIN_ENTRIES)
        self.weights = np.ones(_MIN_ENTRIES)
        self.served = np.zeros(_MIN_ENTRIES)
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
        self.values[entry] = self.served[entry] = 0.0
        self.weights[entry] = 1.0
        return entry

    def close(self, entry: int) -> None:
        """Give an entry back."""
        self._free.append(entry)

    def charge(self, entries: NDArray[np.intp], cost: float) -> None:
        """Charge each of `entries`, which may repeat."""
        np.add.at(self.served, entries, cost)
        np.add.at(self.values, entries, cost / self.weights[entries])

    def _grow(self) -> None:
        size = 2 * len(self.values)
        for name in ("values", "weights", "served"):
            column = getattr(self, name)
            grown = np.zeros(size, dtype=column.dtype)
            grown[: len(column)] = column
            setattr(self, name, grown)
