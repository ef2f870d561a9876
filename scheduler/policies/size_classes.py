"""Sorts work into classes of about equal size, in which the oldest is the most urgent.

A policy whose order depends on both size and waiting time is then a comparison between the oldest
of each class, exact between classes. Within one, sizes differ by less than a fifth.
"""

from __future__ import annotations

import math

_CLASSES_PER_DOUBLING = 4
_LEAST_S = 0.001
_MOST_S = 4096.0


def size_class(service_s: float) -> int:
    """Name the class of work that takes so many seconds; there are 88, from 1 ms to an hour."""
    bounded_s = min(max(service_s, _LEAST_S), _MOST_S)
    return math.floor(_CLASSES_PER_DOUBLING * math.log2(bounded_s / _LEAST_S))


def at_least_s(service_s: float) -> float:
    """Bound work from below, so that it can be divided by."""
    return max(service_s, _LEAST_S)
