"""When the steps in flight will have come back, by the step model.

One begins when it was planned, or when the one before it came back. So errors do not add up: of
the first the beginning is known, and of the second, where there are two, the model alone is.
"""

from __future__ import annotations

from collections import deque

# Of a step, in how far prices were off lately.
_WEIGHT = 0.1


class InFlightTimes:
    """Note the price of each step that is planned, and when it is back; times are in seconds."""

    def __init__(self) -> None:
        self._prices_s: deque[float] = deque()
        self._begun_s = 0.0
        # Of the last steps that came back.
        self._took_s = self._priced_s = 0.0

    def plan(self, price_s: float, now: float) -> None:
        """Note a step that goes to the engine."""
        if not self._prices_s:
            self._begun_s = now
        self._prices_s.append(price_s)

    def report(self, took_s: float, now: float) -> None:
        """Note that the oldest one is back."""
        price_s = self._prices_s.popleft()
        # From nothing both: their ratio is right from the first step on, which counts as any other.
        self._priced_s += (price_s - self._priced_s) * _WEIGHT
        self._took_s += (took_s - self._took_s) * _WEIGHT
        self._begun_s = now

    def lose(self) -> None:
        """Forget the steps: none of them will come back."""
        self._prices_s.clear()

    @property
    def error(self) -> float:
        """Return how many times their price steps took lately, other engines' included."""
        return self._took_s / self._priced_s if self._priced_s else 1.0

    def left_s(self, now: float, *, stretch: float) -> float:
        """Say how long it is until all are back, if they take `stretch` times their price."""
        if not self._prices_s:
            return 0.0
        return max(0.0, self._begun_s + stretch * sum(self._prices_s) - now)
