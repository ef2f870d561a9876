"""Shortest job first, by predicted work that is left, with aging.

The estimate counts for less the longer a request has waited: `service_s / (1 + wait / aging_s)`.
One that has waited beyond `max_wait_s` goes before all that have not, the oldest first, so nobody
starves however wrong the estimates are. A request that was preempted has less work left and so
goes further ahead: shortest remaining time first.

Meant for within a tenant: between tenants it serves whoever sends short requests.
"""

from __future__ import annotations

from scheduler.policies.base import Child, Key, Policy, require_positive
from scheduler.policies.size_classes import size_class


class Sjf(Policy):
    """Order children by the work left of their heads, discounted by their wait."""

    settles = True

    def __init__(self, *, aging_s: float = 10.0, max_wait_s: float = 60.0) -> None:
        require_positive(aging_s=aging_s, max_wait_s=max_wait_s)
        self._aging_s = aging_s
        self._max_wait_s = max_wait_s

    def key(self, child: Child, now: float) -> Key:
        return (child.head(now).request.arrival_s,)

    def class_of(self, child: Child, now: float) -> int:
        return size_class(child.head(now).service_s)

    def rank(self, child: Child, now: float) -> Key:
        head = child.head(now)
        wait_s = now - head.request.arrival_s
        if wait_s > self._max_wait_s:
            return (0.0, head.request.arrival_s)
        return (1.0, head.service_s / (1.0 + wait_s / self._aging_s))
