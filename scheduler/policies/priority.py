"""Strict priority with aging: the highest band goes first, and waiting raises a request.

Each `aging_s` of waiting lifts a request by one band, `max_boost` times at most. As the order of
all three levels it orders the bands too, in place of their guaranteed shares: aging is then what
keeps the low ones from starving. Only work of the batch band is not raised, which is let in where
nothing else waits: next before others, it would keep them out and not begin itself. Below a band
all requests have the same one, and the order is that of arrival.
"""

from __future__ import annotations

from scheduler.policies.base import Child, Key, Policy, require_positive
from scheduler.request import Band


class Priority(Policy):
    """Order children by the bands of their heads, raised by their wait."""

    spans_bands = True
    settles = True

    def __init__(self, *, aging_s: float = 30.0, max_boost: float = 3.0) -> None:
        require_positive(aging_s=aging_s)
        if max_boost < 0.0:
            raise ValueError(f"max_boost must not be negative, not {max_boost}")
        self._aging_s = aging_s
        self._max_boost = max_boost

    def key(self, child: Child, now: float) -> Key:
        return (child.head(now).request.arrival_s,)

    def class_of(self, child: Child, now: float) -> int:
        return child.head(now).request.band

    def rank(self, child: Child, now: float) -> Key:
        request = child.head(now).request
        boost = 0.0
        if request.band is not Band.BATCH:
            boost = min((now - request.arrival_s) // self._aging_s, self._max_boost)
        return (request.band - boost, request.arrival_s)
