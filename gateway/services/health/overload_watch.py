"""Measures how hard this process is pressed, and refuses what its level says.

Four times a second a task reads the schedulers' load, the process's memory and its own lateness,
which is the event loop's. What a level gives up is asked for at two places: before a body is read
(`check_unread`) and once the tier of a request is known (`check`). Queue, KV blocks and waits are a
model's own: requests to one are not refused for what another is flooded with. Memory and the event
loop are those of all.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import fields
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
        schedulers: Mapping[str, Loaded],
        *,
        memory_share: Callable[[], float] | None = None,
        clock: Callable[[], float] = time.monotonic,
        period_s: float = PERIOD_S,
        on_measured: Callable[[int, float], None] = lambda level, lag_s: None,
    ) -> None:
        """`schedulers` are by the names of their models. `on_measured` is told the highest level
        and how late the event loop was, each time.
        """
        self._schedulers = schedulers
        self._memory_share = memory_share or memory_gauge()
        self._clock = clock
        self._period_s = period_s
        self._on_measured = on_measured
        self._due_s = clock()
        self._process = OverloadLadder()
        self._models = {name: OverloadLadder() for name in schedulers}
        # What was measured last: of a model, of the process, and the most of each.
        self._signals: dict[str, Signals] = {}
        self.signals = Signals()

    @property
    def level(self) -> Level:
        """Return the highest level, of the process or of a model."""
        return self._highest.level

    @property
    def cause(self) -> str:
        """Name what led to the highest level; empty where all is calm."""
        return self._highest.cause

    @property
    def _highest(self) -> OverloadLadder:
        return max((self._process, *self._models.values()), key=lambda ladder: ladder.level)

    def level_of(self, model: str) -> Level:
        """Return the level that requests to a model meet."""
        ladder = self._models.get(model)
        level = self._process.level
        return level if ladder is None else max(level, ladder.level)

    def models(self) -> list[tuple[str, Level, str, Signals]]:
        """List the models, each with its own level, what led to it and what was measured last."""
        return [
            (name, ladder.level, ladder.cause, self._signals.get(name, Signals()))
            for name, ladder in self._models.items()
        ]

    def check_unread(self) -> None:
        """Refuse a request whose body was not read yet. Raises: `Saturated`."""
        if self._process.level is Level.SATURATED:
            raise Saturated(retry_after_s=_RETRY_AFTER_S)

    def check(self, tier: Tier, model: str, *, is_light: Callable[[], bool]) -> None:
        """Refuse a request of a tier that is given up now. Raises: `Overloaded`.

        `is_light` tells whether the tenant itself has little waiting for that model. What others
        have waiting is no reason to refuse its requests of the tier that is for everybody: its turn
        comes before theirs.
        """
        level = self.level_of(model)
        if level < Level.PRESSED or tier is Tier.PRIORITY:
            return
        if level is Level.PRESSED and tier is not Tier.FLEX:
            return
        if level is Level.STRAINED and tier is Tier.DEFAULT and is_light():
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
        before = self.level
        of_all = Signals(memory=self._memory_share(), lag_s=lag_s)
        self._process.observe(of_all, now)
        for name, scheduler in self._schedulers.items():
            load = scheduler.load()
            self._signals[name] = Signals(
                kv=load.kv,
                queue=load.queue,
                flex_wait=load.flex_wait,
                default_wait=load.default_wait,
            )
            self._models.setdefault(name, OverloadLadder()).observe(self._signals[name], now)
        self.signals = _most((of_all, *self._signals.values()))
        after = self.level
        self._on_measured(after, lag_s)
        if after > before:
            logger.warning("overload: level %d, %s (%s)", after, after.name.lower(), self.cause)
        elif after < before:
            logger.warning("overload: back to level %d, %s", after, after.name.lower())


def _most(several: Sequence[Signals]) -> Signals:
    """Return the greatest of each signal."""
    names = [field.name for field in fields(Signals)]
    return Signals(**{name: max(getattr(one, name) for one in several) for name in names})


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
