"""Batches cut from a window that is sorted by length, so that their rows end together."""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import islice

from scheduler.batching.former import Room, oldest_due_s
from scheduler.request import Request
from scheduler.sequence import Sequence


class SortedWindow:
    """Gather `window_size` requests, sort them by output length, run them in batches.

    The window goes once it is full, or its oldest has waited for `timeout_s`, the shortest first;
    all of it has run before the next is sorted, so nobody starves. `length_of` predicts how many
    tokens a request will draw.
    """

    def __init__(
        self,
        *,
        batch_size: int,
        window_size: int,
        timeout_s: float,
        length_of: Callable[[Request], float],
    ) -> None:
        assert 1 <= batch_size <= window_size
        self._batch_size = batch_size
        self._window_size = window_size
        self._timeout_s = timeout_s
        self._length_of = length_of
        self._window: list[Sequence] = []

    def form(
        self, waiting: Collection[Sequence], open_room: Callable[[], Room], now: float
    ) -> list[Sequence]:
        # Those that have left the queue ran, or were cancelled.
        self._window = [sequence for sequence in self._window if sequence in waiting]
        due_s = oldest_due_s(waiting, self._timeout_s)
        is_due = len(waiting) >= self._window_size or (due_s is not None and now >= due_s)
        if not self._window and is_due:
            first = islice(waiting, self._window_size)
            self._window = sorted(first, key=lambda s: (self._length_of(s.request), s.ordinal))
        return open_room().take_first(self._window, self._batch_size)

    def due_s(self, waiting: Collection[Sequence]) -> float | None:
        return oldest_due_s(waiting, self._timeout_s)
