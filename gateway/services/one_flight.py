"""Answers everybody who asks for the same thing at the same time with one call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Answer = TypeVar("Answer")


class OneFlight(Generic[Key, Answer]):
    """Share calls that are under way, by key; nothing is kept once they are answered."""

    def __init__(self) -> None:
        self._running: dict[Key, asyncio.Task[Answer]] = {}

    async def ask(self, key: Key, call: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        """Wait for the call that runs for `key`, or make it. Raises: what the call raises."""
        # Shielded: whoever leaves must not fail the others who wait for the same answer.
        return await asyncio.shield(self.begin(key, call))

    def begin(
        self, key: Key, call: Callable[[], Coroutine[Any, Any, Answer]]
    ) -> asyncio.Task[Answer]:
        """Return the call that runs for `key`, or make it; nobody need wait for it."""
        task = self._running.get(key)
        if task is None:
            task = self._running[key] = asyncio.create_task(call())
            task.add_done_callback(lambda done: self._done(key, done))
        return task

    def forget(self) -> None:
        """Let whoever asks from now on make a new call; those who wait still get their answer."""
        self._running.clear()

    def _done(self, key: Key, task: asyncio.Task[Answer]) -> None:
        if self._running.get(key) is task:
            del self._running[key]
        if not task.cancelled():
            task.exception()  # retrieved here too: every waiter may have left
