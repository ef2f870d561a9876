"""When it is."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Tell the time in seconds; the standard library's `time` module is one."""

    def time(self) -> float:
        """Return the wall clock, since 1970."""
        ...

    def monotonic(self) -> float:
        """Return a clock that never goes back, for intervals."""
        ...
