"""Batches that are left alone for a moment: nothing to hand out, or no room for what they have."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from gateway.services.batches.worker_fates import backoff_s


class Rests:
    """Know until when batches rest; times are monotonic seconds."""

    def __init__(self) -> None:
        self._until: dict[UUID, float] = {}
        # How often in a row there was no room, and until when a batch waits for that.
        self._busy: dict[UUID, tuple[int, float]] = {}

    def is_resting(self, batch_id: UUID, now: float) -> bool:
        return self._until.get(batch_id, 0.0) > now

    def rest(self, batch_id: UUID, until_s: float) -> None:
        """Leave a batch alone till then, or longer if that was said before."""
        self._until[batch_id] = max(self._until.get(batch_id, 0.0), until_s)

    def no_room(self, batch_id: UUID, now: float, least_s: float) -> float:
        """Leave a batch alone for longer each time, and say how long from now.

        What else of it there is no room for at the time waits as long, and counts for nothing.
        """
        num, until_s = self._busy.get(batch_id, (0, 0.0))
        if until_s <= now:
            until_s = now + max(least_s, backoff_s(num + 1))
            self._busy[batch_id] = num + 1, until_s
        self.rest(batch_id, until_s)
        return until_s - now

    def served(self, batch_id: UUID) -> None:
        """Learn that there was room."""
        self._busy.pop(batch_id, None)

    def forget(self, known: Collection[UUID], now: float) -> None:
        """Drop what is over, and batches that are."""
        self._until = {id_: until for id_, until in self._until.items() if until > now}
        self._busy = {id_: busy for id_, busy in self._busy.items() if id_ in known}
