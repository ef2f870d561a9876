"""Lifecycle, heartbeat, store watch, and what the probes make of them."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import cast

import pytest

from gateway.domain import KeyRecord
from gateway.errors import StoreUnavailable
from gateway.ports import KeyStore
from gateway.services.health.heartbeat import Heartbeat
from gateway.services.health.lifecycle import Lifecycle, Phase
from gateway.services.health.probes import Part, Probes
from gateway.services.health.store_watch import GRACE_S, StoreWatch
from gateway.services.inference.models import ServedModel

pytestmark = pytest.mark.anyio


class Clock:
    """Stand still until moved."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def time(self) -> float:
        return self.now_s

    def monotonic(self) -> float:
        return self.now_s


class Service:
    """Be as healthy as a test says."""

    ready = True
    last_progress_s = 100.0


class Model:
    def __init__(self, name: str = "one") -> None:
        self.name = name
        self.service = Service()


class Keys:
    """Answer, or not."""

    silent = False

    async def find(self, kid: str) -> KeyRecord | None:
        if self.silent:
            raise StoreUnavailable
        return None


class World:
    """Hold probes of a process with one model and a store, on one clock."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.model, self.keys = Model(), Keys()
        self.lifecycle = Lifecycle(self.clock)
        self.watch = StoreWatch(cast(KeyStore, self.keys), self.clock)
        self.probes = Probes(self.lifecycle, Heartbeat(clock=self.clock), self.clock)
        self.probes.attach([cast(ServedModel, self.model)], self.watch)

    @property
    def ill_for_readiness(self) -> list[str]:
        return names_of_ill(list(self.probes.ready()))


def names_of_ill(parts: list[Part]) -> list[str]:
    return [part.name for part in parts if not part.ok]


def test_a_start_waits_for_its_oldest_unfinished_part() -> None:
    """The word of a start is the first part that has begun and not ended; then it is over."""
    world = World()
    lifecycle = world.lifecycle
    assert lifecycle.waits_for == "startup"
    with lifecycle.starting("store"):
        with lifecycle.starting("model"):
            assert lifecycle.waits_for == "store"
        assert names_of_ill(list(world.probes.started())) == ["store"]
    assert names_of_ill(list(world.probes.started())) == ["startup"]
    lifecycle.advance(Phase.SERVING)
    assert lifecycle.waits_for is None
    assert names_of_ill(list(world.probes.started())) == []


def test_a_part_that_failed_is_waited_for() -> None:
    """A part of the start that raised never counts as done."""
    lifecycle = Lifecycle(Clock())
    with pytest.raises(ZeroDivisionError), lifecycle.starting("store"):
        raise ZeroDivisionError
    assert lifecycle.waits_for == "store"


def test_phases_never_go_back() -> None:
    """A phase that is over does not come again."""
    lifecycle = Lifecycle(Clock())
    lifecycle.advance(Phase.DRAINING)
    with pytest.raises(AssertionError):
        lifecycle.advance(Phase.SERVING)


def test_readiness_needs_phase_engine_and_store() -> None:
    """Each of the three withdraws it, and gives it back."""
    world = World()
    assert world.ill_for_readiness == ["starting"]
    world.lifecycle.advance(Phase.SERVING)
    assert world.ill_for_readiness == []
    world.model.service.ready = False
    assert world.ill_for_readiness == ["engine"]
    world.model.service.ready = True
    world.lifecycle.advance(Phase.DRAINING)
    assert world.ill_for_readiness == ["draining"]


def test_of_several_models_the_one_that_does_not_serve_is_named() -> None:
    """To who looks at the parts; the word for a balancer is the same for all."""
    world = World()
    other = Model("other")
    models = [cast(ServedModel, model) for model in (world.model, other)]
    world.probes.attach(models, world.watch)
    world.lifecycle.advance(Phase.SERVING)
    other.service.ready = False
    assert world.ill_for_readiness == ["engine"]
    [ill] = [part for part in world.probes.ready() if not part.ok]
    assert ill.detail == "other: does not serve"
    other.service.last_progress_s -= 60
    [ill] = [part for part in world.probes.live() if not part.ok]
    assert ill.detail.startswith("other: ")


async def test_a_silent_store_costs_readiness_after_its_grace() -> None:
    """A store that is away for a moment costs nothing; one that stays away, readiness."""
    world = World()
    world.lifecycle.advance(Phase.SERVING)
    world.keys.silent = True
    world.clock.now_s += GRACE_S - 1
    await world.watch.ask()
    assert world.ill_for_readiness == []
    world.clock.now_s += 2
    await world.watch.ask()
    assert world.ill_for_readiness == ["store"]
    assert names_of_ill(list(world.probes.live())) == []
    world.keys.silent = False
    await world.watch.ask()
    assert world.ill_for_readiness == []


def test_an_engine_without_progress_is_not_alive() -> None:
    """An engine that has work and brings no step back for a minute is not alive."""
    world = World()
    world.clock.now_s += 59
    assert names_of_ill(list(world.probes.live())) == []
    world.clock.now_s += 1
    assert names_of_ill(list(world.probes.live())) == ["engine"]


async def test_a_loop_that_hangs_is_noticed_from_outside(caplog: pytest.LogCaptureFixture) -> None:
    """A thread sees a loop that does not turn and logs where it hangs; a beat mends the verdict."""
    heartbeat = Heartbeat(beat_s=0.01, dead_after_s=0.2)
    seen: list[bool] = []

    def hang() -> None:
        deadline = time.monotonic() + 20
        while "hang()" not in caplog.text and time.monotonic() < deadline:
            threading.Event().wait(0.01)
        seen.append(heartbeat.alive)

    async with heartbeat.beating():
        hang()
        assert seen == [False]
        while not heartbeat.alive:
            await asyncio.sleep(0.01)
    assert heartbeat.age_s < 20
