"""First come, first served: by arrival alone."""

from __future__ import annotations

from scheduler.policies.base import Child, Key, Policy


class Fcfs(Policy):
    """Order children by the arrival of their heads."""

    settles = True

    def key(self, child: Child, now: float) -> Key:
        return (child.head(now).request.arrival_s,)
