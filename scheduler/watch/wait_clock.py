"""One clock for all who wait: how long, until now, each cause has kept requests from a slot.

Each plan says what stopped it from letting more in, and that holds until the next one: the time in
between is added to that cause's sum. Whoever begins to wait notes the sums, and again once it has
waited; the differences are what it waited for. So a plan costs the same however many wait.

Work of the batch band is let in by other rules than the rest, and has sums of its own.
"""

from __future__ import annotations

from typing import Final

from scheduler.facts import WaitCause

# What a plan can be stopped by, in the order of the sums.
CAUSES: Final = (
    WaitCause.STEP,
    WaitCause.SLOTS,
    WaitCause.BLOCKS,
    WaitCause.PROMPTS,
    WaitCause.INTERVAL,
    WaitCause.BATCH,
)
_PLACES: Final = {cause: place for place, cause in enumerate(CAUSES)}

# Seconds by cause, in the order of `CAUSES`.
Sums = tuple[float, ...]


class WaitClock:
    """Sum up what requests wait for; see the module. Times are in seconds and never go back."""

    __slots__ = (
        "_batch_place",
        "_batch_sums",
        "_online_place",
        "_online_sums",
        "_since_s",
    )

    def __init__(self) -> None:
        self._online_place = self._batch_place = _PLACES[WaitCause.STEP]
        self._online_sums = [0.0] * len(CAUSES)
        self._batch_sums = [0.0] * len(CAUSES)
        self._since_s: float | None = None

    def note(self, now: float, online: WaitCause, batch: WaitCause) -> None:
        """Note what keeps requests waiting from now on: those of the batch band, and all others."""
        self._advance(now)
        self._online_place, self._batch_place = _PLACES[online], _PLACES[batch]

    def read(self, now: float, *, is_batch: bool) -> Sums:
        """Return the sums until now of the batch band, or of all others."""
        self._advance(now)
        return tuple(self._batch_sums if is_batch else self._online_sums)

    def _advance(self, now: float) -> None:
        since_s = self._since_s
        if since_s is None:
            self._since_s = now
        elif now > since_s:
            self._online_sums[self._online_place] += now - since_s
            self._batch_sums[self._batch_place] += now - since_s
            self._since_s = now
