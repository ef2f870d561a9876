"""Tells from ratios of what took to what was predicted that all has become slower, or faster."""

from __future__ import annotations

from collections import deque
from math import log
from statistics import median
from typing import Final

NUM_ALIKE: Final = 16
_LOG_RATIO: Final = log(1.1)


class Swing:
    """Watch for so many ratios in a row on one side of 1, by more than a tenth at the median."""

    def __init__(self) -> None:
        self._ratios: deque[float] = deque(maxlen=NUM_ALIKE)

    def __len__(self) -> int:
        """Count the ratios in a row that there are, of those that are watched for."""
        return len(self._ratios)

    def note(self, ratio: float) -> float | None:
        """Take a ratio, above 0, in; returns the factor by which all has changed, if it has."""
        if self._ratios and (self._ratios[-1] > 1.0) != (ratio > 1.0):
            self._ratios.clear()
        self._ratios.append(ratio)
        if len(self._ratios) < NUM_ALIKE:
            return None
        factor = median(self._ratios)
        return factor if abs(log(factor)) > _LOG_RATIO else None

    def clear(self) -> None:
        """Begin anew, as what is predicted has changed."""
        self._ratios.clear()
