"""Earliest deadline first: by when the first token is due.

A request whose tenant was promised nothing is due within the configured best-effort time, so
that it cannot wait for ever behind requests that were promised something.
"""

from __future__ import annotations

from scheduler.policies.base import Child, Key, Policy


class Edf(Policy):
    """Order children by the deadlines of their heads."""

    settles = True

    def key(self, child: Child, now: float) -> Key:
        return (child.head(now).deadline_s,)
