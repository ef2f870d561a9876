"""What a policy is: it orders the requests that wait, and is told what they cost.

A policy keeps counters at most: no clock (`now` is an argument, in seconds), no I/O, no queue.
The tree asks for a key per child and serves the least one; ties go to the older request, and a
preempted request goes ahead of its equals.
"""

from __future__ import annotations

from typing import Protocol

from scheduler.request import Request


class Policy(Protocol):
    """Give requests their order."""

    def key(self, request: Request, now: float) -> tuple[float, ...]:
        """Rank a request that starts to wait; the least key goes first."""
        ...

    def activate(self, request: Request, now: float) -> None:
        """Learn that a request has begun to wait where none of its tenant did."""
        ...

    def charge(self, request: Request, num_tokens: int, now: float) -> None:
        """Learn that `num_tokens` tokens were computed for a request."""
        ...
