"""Measures how hard this process is pressed, and refuses what its level says.

Four times a second a task reads the schedulers' load, the process's memory and its own lateness,
which is the event loop's. What a level gives up is asked for at two places: before a body is read
(`check_unread`) and once the tier of a request is known (`check`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Protocol

from gateway.background import Background
from gateway.domain import Tier
from gateway.errors import Overloaded, Saturated
from gateway.services.health.overload import Level, OverloadLadder, Signals
from scheduler.state import Load

logger = logging.getLogger(__name__)

PERIOD_S: Final = 0.25
# A level lasts five seconds after its relief at least.
_RETRY_AFTER_S: Final = 5.0
_CGROUP_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")


class Loaded(Protocol):
    """Show how full a scheduler is."""

    def load(self) -> Load: ...


class OverloadWatch:
    """Keep a ladder; enter `watching` to have it follow the process."""

    def __init__(
        self,
        schedulers: Iterable[Loaded],
        *,
        memory_share: Callable[[], float] | None = None,
        clock: Callable[[], float] = time.monotonic,
        period_s: float = PERIOD_S,
        on_measured: Callable[[int, float], None] = lambda level, lag_s: None,
    ) -> None:
        """`on_measured` is told the level and how late the event loop was, each time."""
        self._schedulers = tuple(schedulers)
        self._memory_share = memory_share or memory_gauge()
        self._clock = clock
        self._period_s = period_s
        self._on_measured = on_measured
        self._due_s = clock()
        self._ladder = OverloadLadder()
        self.signals = Signals()

    @property
    def level(self) -> Level:
        return self._ladder.level

    @property
    def cause(self) -> str:
        """Name what led to the present level; empty where all is calm."""
        return self._ladder.cause

    def check_unread(self) -> None:
        """Refuse a request whose body was not read yet. Raises: `Saturated`."""
        if self.level is Level.SATURATED:
            raise Saturated(retry_after_s=_RETRY_AFTER_S)

    def check(self, tier: Tier) -> None:
        """Refuse a request of a tier that is given up now. Raises: `Overloaded`."""
        level = self.level
        if level < Level.PRESSED or tier is Tier.PRIORITY:
            return
        if level is Level.PRESSED and tier is not Tier.FLEX:
            return
        raise Overloaded(
            f"The server is overloaded and takes no requests of the tier '{tier.value}' now.",
            retry_after_s=_RETRY_AFTER_S,
        )

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Follow the process until the block ends."""
        self._due_s = self._clock() + self._period_s
        async with Background("measuring the load", self.measure, interval_s=self._period_s):
            yield

    async def measure(self) -> None:
        """Measure once, when it was due or later, and say when it is due again."""
        now = self._clock()
        try:
            self.look(now, lag_s=max(0.0, now - self._due_s))
        finally:
            self._due_s = self._clock() + self._period_s

    def look(self, now: float, *, lag_s: float) -> None:
        """Measure once; `lag_s` is how late the event loop was."""
        loads = [scheduler.load() for scheduler in self._schedulers]
        self.signals = Signals(
            kv=max((load.kv for load in loads), default=0.0),
            queue=max((load.queue for load in loads), default=0.0),
            flex_wait=max((load.flex_wait for load in loads), default=0.0),
            default_wait=max((load.default_wait for load in loads), default=0.0),
            memory=self._memory_share(),
            lag_s=lag_s,
        )
        before = self.level
        after = self._ladder.observe(self.signals, now)
        self._on_measured(after, lag_s)
        if after > before:
            logger.warning("overload: level %d, %s (%s)", after, after.name.lower(), self.cause)
        elif after < before:
            logger.warning("overload: back to level %d, %s", after, after.name.lower())


def memory_gauge() -> Callable[[], float]:
    """Return a function that says how much of its memory this process uses, from 0 to 1.

    What it may have is the limit of its control group, or all of the machine's.
    """
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    limit_bytes = os.sysconf("SC_PHYS_PAGES") * page_bytes
    with contextlib.suppress(OSError, ValueError):
        # The word "max" stands for none.
        limit_bytes = min(limit_bytes, int(_CGROUP_LIMIT.read_text()))
    statm = Path("/proc/self/statm")

    def share() -> float:
        try:
            resident_pages = int(statm.read_text().split()[1])
        except OSError:
            return 0.0
        return resident_pages * page_bytes / limit_bytes

    return share
