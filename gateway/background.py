"""What a process does again and again beside its requests: watch, refresh, renew, sweep, deliver.

A round is a method of its owner that takes no argument and can be called by itself: so tests drive
it. `Background` calls it on a task of the event loop, one round at a time, while its block runs; on
leaving it cancels the task and waits for it. What is still to be done then is the owner's.

A fault ends its round and none to come: an outage is logged in a line, anything else with its
traceback. It stands beneath the services and the store, as both have such work.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Self

from gateway.errors import StoreUnavailable

logger = logging.getLogger(__name__)

# Of an interval that many processes share, so that they do not come together.
JITTER: Final = 0.1


class Background:
    """Do `work` again and again while entered. `name` is what the log calls it."""

    def __init__(
        self,
        name: str,
        work: Callable[[], Awaitable[object]],
        *,
        interval_s: float | None,
        jitter: float = 0.0,
        at_once: bool = False,
        wake: asyncio.Event | None = None,
        retry_s: Sequence[float] = (),
        outages: tuple[type[Exception], ...] = (StoreUnavailable,),
        level: int = logging.WARNING,
    ) -> None:
        """Wait `interval_s` before each round, the first too unless it is to come `at_once`.

        `interval_s`: None: until woken; up to `jitter` of it is added, drawn each time.
        `wake`: ends a wait early while it is set; each round begins by clearing it.
        `retry_s`: the waits after a first, second, … round in a row that failed, the last of them
        from then on; nothing ends them early. Empty: as after any other.
        `outages`, `level`: faults that are no bugs of ours, and how they are logged.
        """
        self._name = name
        self._work = work
        self._interval_s = interval_s
        self._jitter = jitter
        self._at_once = at_once
        self._wake = wake
        self._retry_s = retry_s
        self._outages = outages
        self._level = level
        self._num_failed = 0
        self._task: asyncio.Task[None] | None = None
        self._is_left = False

    async def __aenter__(self) -> Self:
        self._is_left = False
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *raised: object) -> None:
        assert self._task is not None, "entered before it is left"
        # A client of a store may take the cancellation for a failure of its own, and go on.
        self._is_left = True
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def round(self) -> None:
        """Do the work once, whatever becomes of it."""
        if self._wake is not None:
            self._wake.clear()
        try:
            await self._work()
        except self._outages as exc:
            self._num_failed += 1
            logger.log(self._level, "%s put off: %s", self._name, exc)
        except Exception:
            self._num_failed += 1
            logger.exception("%s failed", self._name)
        else:
            self._num_failed = 0

    async def _run(self) -> None:
        if not self._at_once:
            await self._pause()
        while True:
            await self.round()
            if self._is_left:
                return
            await self._pause()

    async def _pause(self) -> None:
        if self._num_failed and self._retry_s:
            nth = min(self._num_failed, len(self._retry_s))
            await asyncio.sleep(self._retry_s[nth - 1])
            return
        pause_s = self._interval_s
        if pause_s is not None:
            pause_s *= 1 + random.random() * self._jitter
        if self._wake is None:
            assert pause_s is not None, "it needs an interval, or what wakes it"
            await asyncio.sleep(pause_s)
            return
        try:
            async with asyncio.timeout(pause_s):
                await self._wake.wait()
        except TimeoutError:
            pass
