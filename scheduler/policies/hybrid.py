"""Between earliest deadline and shortest prefill, giving up what cannot be in time.

In order of `deadline + alpha * tokens to prefill`: with the deadline alone, one long prompt makes
many short ones late once there is more work than time. A request that can no longer start in
time, and never ran, is relegated: it goes when nothing else waits, so that it does not make
others late as well.

Source: Niyama (Goel et al., 2025) and its artifact, which has 0.008 seconds a token.
"""

from __future__ import annotations

from scheduler.policies.base import Child, Key, Policy

_ALPHA_S = 0.008


class Hybrid(Policy):
    """Order children by the deadlines of their heads and by the work before these."""

    settles = True
    ranks_by_class = True

    def __init__(self, *, alpha_s: float = _ALPHA_S) -> None:
        if alpha_s < 0.0:
            raise ValueError(f"alpha_s must not be negative, not {alpha_s}")
        self._alpha_s = alpha_s

    def key(self, child: Child, now: float) -> Key:
        head = child.head(now)
        return (head.deadline_s + self._alpha_s * head.num_uncached,)

    def class_of(self, child: Child, now: float) -> int:
        """Tell the relegated (1) from the others (0)."""
        head = child.head(now)
        return int(head.start_by_s < now and not head.was_admitted)

    def rank(self, child: Child, now: float) -> Key:
        return (float(self.class_of(child, now)), *self.key(child, now))
