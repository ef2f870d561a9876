"""Batches that ask for a model which this process lacks: left to those that have it.

What other processes serve is known to nobody, so a batch is said to wait for its model once nothing
of it has come to an end for `STUCK_S`. Should it be a busy worker that it waits for, that one takes
it back when it looks next. Only who serves the model takes it back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final
from uuid import UUID

from gateway.domain.batch import Batch

STUCK_S: Final = 300.0


class Lacking:
    """Tell what this process can run; times are monotonic seconds."""

    def __init__(self, serves: Callable[[str], bool]) -> None:
        """`serves` tells of a model's own name whether it is served here."""
        self._serves = serves
        # How many items were over when that last changed, and when that was.
        self._seen: dict[UUID, tuple[int, float]] = {}

    def split(self, batches: Iterable[Batch], now: float) -> tuple[list[Batch], list[UUID]]:
        """Return the batches whose models are all here, and which of the others are stuck."""
        mine, stuck = [], []
        seen: dict[UUID, tuple[int, float]] = {}
        for batch in batches:
            if all(map(self._serves, batch.models)):
                mine.append(batch)
                continue
            num_over = batch.num_done + batch.num_failed
            before, since_s = self._seen.get(batch.id, (num_over, now))
            if before != num_over or batch.paused_for is not None:
                since_s = now
            seen[batch.id] = num_over, since_s
            if now - since_s >= STUCK_S:
                stuck.append(batch.id)
        self._seen = seen
        return mine, stuck
