"""What is measured of a process, and what its overload level refuses."""

from __future__ import annotations

import asyncio
import time

import pytest

from gateway.domain import Tier
from gateway.errors import Overloaded, Saturated
from gateway.services.health.overload import Level, Signals
from gateway.services.health.overload_watch import OverloadWatch, memory_gauge
from scheduler.state import Load

CALM = Load(kv=0.1, queue=0.0, default_wait=0.0, flex_wait=0.0)


class Scheduler:
    """Be as full as it is told."""

    def __init__(self, load: Load = CALM) -> None:
        self.now = load

    def load(self) -> Load:
        return self.now


def pressed(load: Load, *, memory: float = 0.1, lag_s: float = 0.0) -> OverloadWatch:
    """Let signals hold for a second."""
    watch = OverloadWatch(
        {"calm": Scheduler(), "full": Scheduler(load)}, memory_share=lambda: memory
    )
    for quarter in range(5):
        watch.look(quarter / 4, lag_s=lag_s)
    return watch


def refused(watch: OverloadWatch, model: str = "full", *, is_light: bool = False) -> list[Tier]:
    """List the tiers that are given up of a tenant that has much waiting, or little."""
    tiers = []
    for tier in Tier:
        try:
            watch.check(tier, model, is_light=lambda: is_light)
        except Overloaded:
            tiers.append(tier)
    return tiers


@pytest.mark.parametrize(
    ("load", "level", "tiers"),
    [
        (CALM, Level.CALM, []),
        (Load(0.9, 0.0, 0.0, 0.0), Level.BUSY, []),
        (Load(0.1, 0.6, 0.0, 0.0), Level.PRESSED, [Tier.FLEX]),
        (Load(0.1, 0.95, 0.0, 0.0), Level.STRAINED, [Tier.FLEX, Tier.DEFAULT]),
        (Load(0.1, 0.0, 1.5, 1.5), Level.STRAINED, [Tier.FLEX, Tier.DEFAULT]),
    ],
)
def test_a_full_scheduler_decides_what_its_model_refuses(
    load: Load, level: Level, tiers: list[Tier]
) -> None:
    """The lowest tiers go first, and the highest is never refused for what it may keep.

    Requests to a model beside it are not refused for it.
    """
    watch = pressed(load)
    assert watch.level is level
    assert sorted(refused(watch), key=str) == sorted(tiers, key=str)
    assert refused(watch, "calm") == []
    assert {name: level for name, level, *_ in watch.models()} == {"calm": 0, "full": level}
    watch.check_unread()


def test_what_others_have_waiting_is_no_reason_to_refuse() -> None:
    """A tenant that has little waiting keeps the default tier beside a queue that is full, and not
    the tier that gives way first; a process without memory refuses it all the same.
    """
    assert refused(pressed(Load(0.1, 0.95, 1.5, 1.5)), is_light=True) == [Tier.FLEX]
    full = pressed(Load(0.1, 0.95, 0.0, 0.0), memory=0.95)
    assert Tier.DEFAULT in refused(full, is_light=True)


@pytest.mark.parametrize("signals", [{"memory": 0.95}, {"lag_s": 0.5}])
def test_a_saturated_process_reads_nothing(signals: dict[str, float]) -> None:
    """Without memory, or with a loop that lags, a request is refused before its body."""
    watch = pressed(CALM, **signals)
    assert watch.level is Level.SATURATED
    with pytest.raises(Saturated):
        watch.check_unread()
    assert Tier.DEFAULT in refused(watch)
    assert Tier.DEFAULT in refused(watch, "calm")
    assert watch.cause in ("memory", "lag")


@pytest.mark.anyio
async def test_a_loop_that_is_held_up_is_noticed() -> None:
    """Who blocks the event loop raises the lag that the watch sees, by about as long."""
    watch = OverloadWatch({"one": Scheduler()}, memory_share=lambda: 0.0, period_s=0.02)
    async with watch.watching():
        await asyncio.sleep(0.05)
        time.sleep(0.3)  # noqa: ASYNC251
        deadline_s = time.monotonic() + 5
        while watch.signals.lag_s < 0.2 and time.monotonic() < deadline_s:
            await asyncio.sleep(0.001)
        assert watch.signals.lag_s >= 0.2
    assert watch.signals == Signals(kv=0.1, lag_s=watch.signals.lag_s)


def test_memory_is_a_share_of_what_there_is() -> None:
    """This process uses some of its memory and not all of it."""
    assert 0.0 < memory_gauge()() < 1.0


def test_who_follows_is_told_of_each_measurement() -> None:
    """The level that it led to, and how late the event loop was."""
    told: list[tuple[int, float]] = []
    watch = OverloadWatch(
        {"one": Scheduler()},
        memory_share=lambda: 0.1,
        on_measured=lambda level, lag_s: told.append((level, lag_s)),
    )
    for quarter in range(5):
        watch.look(quarter / 4, lag_s=0.3)
    assert told == [(0, 0.3)] * 4 + [(Level.SATURATED, 0.3)]
