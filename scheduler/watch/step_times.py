"""When steps came back, and which of those since some time was the longest.

The longest since any time is found on a stack that each step clears of all that were shorter: what
is left gets shorter towards its top, and the first that came back since a time is the longest since
then. A step costs a push and, on average, a pop; the stack has a few dozen entries.
"""

from __future__ import annotations

from bisect import bisect_right
from math import inf
from typing import NamedTuple

_NUM_KEPT = 1 << 13
_MAX_LONG = 256


class LongStep(NamedTuple):
    """Tell of a step: when it came back, how long it took, and of how many tokens of prompts."""

    ended_s: float
    took_s: float
    num_prefill_tokens: int


class StepTimes:
    """Remember the last steps; times are in seconds."""

    def __init__(self) -> None:
        self._ended_s = [-inf] * _NUM_KEPT
        self._last_id = -1
        self._long: list[LongStep] = []
        self.last_s = -inf

    def note(self, step_id: int, took_s: float, num_prefill_tokens: int, now: float) -> None:
        """Note a step that comes back now."""
        self._ended_s[step_id % _NUM_KEPT] = self.last_s = now
        self._last_id = step_id
        long = self._long
        while long and long[-1].took_s <= took_s:
            long.pop()
        long.append(LongStep(now, took_s, num_prefill_tokens))
        if len(long) > _MAX_LONG:
            del long[: _MAX_LONG // 2]

    def ended_s(self, step_id: int) -> float | None:
        """Say when a step came back, None where it has not; of one long ago, when a later did."""
        return self._ended_s[step_id % _NUM_KEPT] if step_id <= self._last_id else None

    def longest_since(self, since_s: float) -> LongStep | None:
        """Find the longest of the steps that came back after `since_s`."""
        if self.last_s <= since_s:
            return None
        return self._long[bisect_right(self._long, (since_s, inf, 0))]
