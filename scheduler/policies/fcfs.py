"""First come, first served: by arrival alone, whatever tenant or band a request is of."""

from __future__ import annotations

from scheduler.request import Request


class Fcfs:
    """Order requests by the time of their arrival."""

    def key(self, request: Request, now: float) -> tuple[float, ...]:
        return (request.arrival_s,)

    def activate(self, request: Request, now: float) -> None:
        """Nothing to learn: arrival times do not depend on who waits."""

    def charge(self, request: Request, num_tokens: int, now: float) -> None:
        """Nothing to learn: arrival times do not depend on what was computed."""
