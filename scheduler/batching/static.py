"""Batches of a fixed size, in the order of arrival."""

from __future__ import annotations

from collections.abc import Callable, Collection

from scheduler.batching.former import Room, oldest_due_s
from scheduler.sequence import Sequence


class Static:
    """Form a batch once it is full, or its oldest has waited for `timeout_s`.

    A batch that the next in the queue does not fit into is full, whatever its size.
    """

    def __init__(self, *, batch_size: int, timeout_s: float) -> None:
        assert batch_size >= 1
        self._batch_size = batch_size
        self._timeout_s = timeout_s

    def form(
        self, waiting: Collection[Sequence], open_room: Callable[[], Room], now: float
    ) -> list[Sequence]:
        batch = open_room().take_first(waiting, self._batch_size)
        due_s = self.due_s(waiting)
        is_full = len(batch) == self._batch_size or len(batch) < len(waiting)
        return batch if is_full or (due_s is not None and now >= due_s) else []

    def due_s(self, waiting: Collection[Sequence]) -> float | None:
        return oldest_due_s(waiting, self._timeout_s)
