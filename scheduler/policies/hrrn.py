"""Highest response ratio next: whoever has waited longest for its size.

The ratio of the wait to the predicted work grows without bound, so that short requests go first
and long ones cannot starve.
"""

from __future__ import annotations

from scheduler.policies.base import Child, Key, Policy
from scheduler.policies.size_classes import at_least_s, size_class


class Hrrn(Policy):
    """Order children by how long their heads have waited, relative to their work."""

    settles = True

    def key(self, child: Child, now: float) -> Key:
        return (child.head(now).request.arrival_s,)

    def class_of(self, child: Child, now: float) -> int:
        return size_class(child.head(now).service_s)

    def rank(self, child: Child, now: float) -> Key:
        head = child.head(now)
        return ((head.request.arrival_s - now) / at_least_s(head.service_s),)
