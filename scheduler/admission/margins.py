"""How much room predictions of queues must be left, by how far the last ones were off.

A queue that drains by chance (slots become free when others end) is off by about the square root
of its length, so that is what errors are measured in. What comes later and goes first is another
source of errors, and those differ: a tenant that floods is overtaken, one within its share is not.
So each tenant has its own record, in each band, and all those that have too little of it share
one, to which a tenant adds until it has enough.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import OrderedDict, deque

from scheduler.request import Band

_WINDOW = 256
_ENOUGH = 32
_QUANTILE = 0.995
_MAX_TENANTS = 1024
# In square roots of seconds, before anything is known.
_UNKNOWN = 0.3

Payer = tuple[Band, str]


class Margins:
    """Learn by how much to stretch predictions so that few are exceeded; see the module."""

    def __init__(self) -> None:
        # Those least lately heard of first.
        self._errors_of: OrderedDict[Payer, _Errors] = OrderedDict()
        self._shared = {band: _Errors() for band in Band}

    def add(self, payer: Payer, predicted_s: float, took_s: float) -> None:
        """Learn what came of a prediction, which was of some time."""
        error = (took_s - predicted_s) / math.sqrt(predicted_s)
        errors = self._errors_of.get(payer)
        if errors is None:
            errors = self._errors_of[payer] = _Errors()
            if len(self._errors_of) > _MAX_TENANTS:
                self._errors_of.popitem(last=False)
        self._errors_of.move_to_end(payer)
        if not errors.is_enough:
            self._shared[payer[0]].add(error)
        errors.add(error)

    def margin_s(self, payer: Payer, predicted_s: float) -> float:
        """Say what to add to a prediction."""
        errors = self._errors_of.get(payer)
        if errors is None or not errors.is_enough:
            errors = self._shared[payer[0]]
        return (errors.high if errors.is_enough else _UNKNOWN) * math.sqrt(predicted_s)


class _Errors:
    """Keep the last errors, in the order they came and sorted."""

    __slots__ = ("_arrived", "_sorted")

    def __init__(self) -> None:
        self._arrived: deque[float] = deque()
        self._sorted: list[float] = []

    @property
    def is_enough(self) -> bool:
        return len(self._sorted) >= _ENOUGH

    @property
    def high(self) -> float:
        """Return what few are above; at least 0."""
        return max(0.0, self._sorted[math.ceil(_QUANTILE * len(self._sorted)) - 1])

    def add(self, error: float) -> None:
        self._arrived.append(error)
        insort(self._sorted, error)
        if len(self._arrived) > _WINDOW:
            del self._sorted[bisect_left(self._sorted, self._arrived.popleft())]
