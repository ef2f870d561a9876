"""Whether two samples of times are of one kind: the test of Kolmogorov and Smirnov."""

from __future__ import annotations

import math
from collections.abc import Sequence


def p_value(first: Sequence[float], second: Sequence[float]) -> float:
    """Return how likely so large a distance is where both are drawn alike.

    By the limit distribution with Stephens's correction (Numerical Recipes, `kstwo`), which is good
    from some twenty values each on.
    """
    size = len(first) * len(second) / (len(first) + len(second))
    root = math.sqrt(size)
    scaled = (root + 0.12 + 0.11 / root) * distance(first, second)
    if scaled < 0.2:
        # The series needs ever more terms there, and is 1 to ten digits.
        return 1.0
    terms = ((1.0 if k % 2 else -1.0) * math.exp(-2.0 * (k * scaled) ** 2) for k in range(1, 101))
    return min(1.0, max(0.0, 2.0 * sum(terms)))


def distance(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the largest difference between the two distributions, 0 to 1."""
    ours, theirs = sorted(first), sorted(second)
    at = other = 0
    largest = 0.0
    while at < len(ours) and other < len(theirs):
        value = min(ours[at], theirs[other])
        while at < len(ours) and ours[at] <= value:
            at += 1
        while other < len(theirs) and theirs[other] <= value:
            other += 1
        largest = max(largest, abs(at / len(ours) - other / len(theirs)))
    return largest
