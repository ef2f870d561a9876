"""Batches that wait for something of their tenant's: why, and when to look again.

Whether there is room in a budget is known by asking for it, so a batch goes on with one item, and
with more once that has begun. A key that is dead stays so, but for one that is looked at too early.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from uuid import UUID

from gateway.domain.batch import Batch, PausedFor
from gateway.ports import BatchStore

RETRY_S: Final = 30.0


class Pauses:
    """Pause batches and let them go on; on the event loop alone. Times are monotonic seconds."""

    def __init__(self, batches: BatchStore, *, retry_s: float = RETRY_S) -> None:
        self._batches = batches
        self._retry_s = retry_s
        self._retry_at_s: dict[UUID, float] = {}
        self._trying: set[UUID] = set()
        self._to_say: dict[UUID, tuple[PausedFor, str | None]] = {}

    def pause(
        self, batch_id: UUID, why: PausedFor, now: float, *, because: str | None = None
    ) -> None:
        """Have a batch wait; others learn of it with `say`, its tenant in words: `because`."""
        if batch_id not in self._retry_at_s:
            self._trying.discard(batch_id)
            self._retry_at_s[batch_id] = now + self._retry_s
            self._to_say[batch_id] = why, because

    async def say(self) -> None:
        """Write down what was paused. Raises: `StoreUnavailable`; call it again then."""
        while self._to_say:
            why, _ = next(iter(self._to_say.values()))
            said = {id_: because for id_, (each, because) in self._to_say.items() if each is why}
            await self._batches.pause(said, why)
            self._to_say = {id_: one for id_, one in self._to_say.items() if id_ not in said}

    async def look(self, batches: Iterable[Batch], now: float) -> list[Batch]:
        """Return those of open batches that run; what has waited long enough is tried again.

        Raises: `StoreUnavailable`.
        """
        batches = list(batches)
        known = {batch.id for batch in batches}
        self._retry_at_s = {id_: at for id_, at in self._retry_at_s.items() if id_ in known}
        self._trying &= known
        running, tried = [], []
        for batch in batches:
            due_s = self._retry_at_s.get(batch.id)
            if due_s is None and batch.paused_for is not None:
                # By somebody else, or before this process began.
                due_s = self._retry_at_s[batch.id] = now
            if due_s is None:
                running.append(batch)
            elif now >= due_s:
                tried.append(batch.id)
                running.append(batch)
        if tried:
            await self._batches.pause(dict.fromkeys(tried), None)
        for batch_id in tried:
            del self._retry_at_s[batch_id]
            self._trying.add(batch_id)
        return running

    def is_paused(self, batch_id: UUID) -> bool:
        """Tell whether it was paused here and is not tried again yet."""
        return batch_id in self._retry_at_s

    def most(self, batch_id: UUID, num_places: int) -> int:
        """Say how many items of a batch to claim: of one that is being tried, one."""
        return min(num_places, 1) if batch_id in self._trying else num_places

    def is_trying(self, batch_id: UUID) -> bool:
        """Tell whether one item is to show whether it goes on."""
        return batch_id in self._trying

    def begun(self, batch_id: UUID) -> None:
        """Learn that an item was paid for: whatever it was, it is over."""
        self._trying.discard(batch_id)
