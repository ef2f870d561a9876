"""Stores that are neither up nor down: each way of each gateway to each store has moods of its own.

A gateway reaches PostgreSQL and Valkey through proxies that nobody else uses, so that a store can
be there for one and away for another. Each proxy changes its mind every two seconds; what it draws
holds for connections that are open too.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from gateway.store.postgres_server import DATABASE, LOGIN
from gateway.store.valkey_server import SOCKET
from tests.faults.postgres import FULL, STARTING, Cut, PostgresProxy
from tests.faults.proxy import Fault, FaultProxy
from tests.faults.replica import is_ready
from tests.soak.faulty_stores import FaultyStores, impatient
from tests.soak.fleet import Fleet, running_fleet, until

GATEWAYS: Final = 2
TURN_S: Final = 2.0
_CUT_BYTES_MAX: Final = 6000
_STORE_BACK_S: Final = 60.0


class Mood(StrEnum):
    """Name how a proxy is for a while."""

    UP = "up"
    SLOW = "slow"
    RESET = "reset"
    BLACK_HOLE = "black hole"
    LOST_REPLY = "lost reply"
    REFUSING = "refusing"


# As often up as in any trouble, or nothing would ever be in the midst of something.
_MOODS: Final = [*Mood, Mood.UP, Mood.UP, Mood.UP, Mood.UP]
_KIND: Final = (Mood.UP, Mood.SLOW)


@dataclass
class Turns:
    """Count what the stores and gateways went through."""

    moods: dict[str, int] = field(default_factory=lambda: dict.fromkeys(Mood, 0))
    kills: int = 0
    starts_failed: int = 0
    partitions: int = 0
    postgres_restarts: int = 0
    redis_kills: int = 0


class Fickle:
    """Stand before one store for one gateway, in one mood at a time."""

    def __init__(self, proxy: FaultProxy, draw: random.Random) -> None:
        self.mood = Mood.UP
        self._proxy = proxy
        self._draw = draw
        self._is_deaf = False

    def next_mood(self) -> Mood:
        return self._draw.choice(_MOODS)

    async def turn(self, mood: Mood) -> None:
        """Be in another mood from now on."""
        self.mood = mood
        proxy, draw = self._proxy, self._draw
        if isinstance(proxy, PostgresProxy):
            proxy.relent()
            proxy.cut = None
        if self._is_deaf:
            self._is_deaf = False
            await proxy.listen()
        proxy.fault = Fault()
        if mood is Mood.SLOW:
            proxy.fault = Fault(latency_s=0.21, jitter_s=0.19)
        elif mood is Mood.RESET:
            proxy.fault = Fault(reset=True)
        elif mood is Mood.BLACK_HOLE:
            proxy.fault = Fault(blackhole=True)
        elif mood is Mood.LOST_REPLY:
            # Connections that are open have had as much: what is sent on them is done and unheard.
            num_bytes = int(math.exp(draw.uniform(0, math.log(_CUT_BYTES_MAX))))
            proxy.fault = Fault(cut_after_bytes=num_bytes, reset=draw.random() < 0.5)
            if isinstance(proxy, PostgresProxy):
                proxy.cut = Cut(b"COMMIT", is_passed=True)
        elif mood is Mood.REFUSING:
            code = draw.choice((None, STARTING, FULL))
            if isinstance(proxy, PostgresProxy) and code is not None:
                proxy.refuse(code)
            else:
                self._is_deaf = True
                await proxy.deafen()


@dataclass
class FickleStores(FaultyStores):
    """Hold a fleet of which each gateway has its own ways to the stores, by its number."""

    to_redis: list[Fickle] = field(default_factory=list)
    to_postgres: list[Fickle] = field(default_factory=list)

    async def restart_postgres(self) -> None:
        """End PostgreSQL as a crash does; it is back when this returns."""
        before = self.postgres_pids()[-1]
        os.kill(before, signal.SIGQUIT)

        async def is_back() -> bool:
            return self._pid("postgres/postmaster.pid") not in (0, before)

        await until(is_back, timeout_s=_STORE_BACK_S)

    async def calm(self) -> None:
        """Have every way be open."""
        for way in (*self.to_redis, *self.to_postgres):
            await way.turn(Mood.UP)


@dataclass(frozen=True, slots=True)
class Storm:
    """Say how long it lasts and how often what happens in it; all in seconds.

    `partitions` are the times at which a gateway, the next in turn, is cut off from Redis. Only the
    other is killed meanwhile; of every third partition the one that is cut off is, after half. With
    another signal than `kill -9` gateways are restarted as in a roll-out.
    """

    for_s: float
    partitions: Sequence[float]
    partition_s: float = 45.0
    kill_s: float = 20.0
    postgres_s: float = 70.0
    redis_s: float = 85.0
    kills_with: signal.Signals = signal.SIGKILL


async def rage(stores: FickleStores, storm: Storm, turns: Turns, draw: random.Random) -> None:
    """Bring it over a fleet; afterwards all ways are open, and gateways may still be starting."""
    cut_off: set[int] = set()
    starting: set[int] = set()
    loop = asyncio.get_running_loop()
    end_s = loop.time() + storm.for_s
    tasks = [
        *(
            _turn(
                way,
                turns,
                lambda at=at: at in cut_off,
                lambda at=at: at in starting,
                is_redis=ways is stores.to_redis,
            )
            for ways in (stores.to_redis, stores.to_postgres)
            for at, way in enumerate(ways)
        ),
        _let_start(stores, cut_off, starting),
        _cut_off(stores, storm, cut_off, turns),
        _now_and_then(
            storm.kill_s, draw, end_s, lambda: _kill(stores, storm, cut_off, draw, turns)
        ),
        _now_and_then(storm.postgres_s, draw, end_s, lambda: _crash_postgres(stores, turns)),
        _now_and_then(storm.redis_s, draw, end_s, lambda: _kill_redis(stores, turns)),
    ]
    running = [asyncio.create_task(task) for task in tasks]
    try:
        done, _ = await asyncio.wait(
            running, timeout=storm.for_s, return_when=asyncio.FIRST_EXCEPTION
        )
        for task in done:
            task.result()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await stores.calm()


async def keep_running(fleet: Fleet, turns: Turns) -> None:
    """Start gateways that have ended, as a supervisor does."""
    while True:
        for replica in fleet.replicas:
            if not replica.is_running:
                assert replica.process is not None
                turns.starts_failed += replica.process.returncode not in (-signal.SIGKILL, 0)
                replica.start()
        await asyncio.sleep(0.5)


async def _turn(
    way: Fickle,
    turns: Turns,
    is_cut_off: Callable[[], bool],
    is_starting: Callable[[], bool],
    *,
    is_redis: bool,
) -> None:
    """Change a way's mind every two seconds.

    That of a gateway which is cut off from Redis stays as it is; its way to the ledger is not in
    trouble twice in a row, or it would be cut off from both. While it starts all is well.
    """
    while True:
        await asyncio.sleep(TURN_S)
        if is_cut_off() and is_redis:
            continue
        mood = way.next_mood()
        if is_starting() or (is_cut_off() and way.mood not in _KIND):
            mood = Mood.UP
        await way.turn(mood)
        turns.moods[mood] += 1


async def _let_start(stores: FickleStores, cut_off: set[int], starting: set[int]) -> None:
    """Note which gateways are starting, and open their ways.

    One that meets trouble at its start ends and is started again, and nobody would be served.
    """
    started = [replica.process for replica in stores.fleet.replicas]
    while True:
        for at, replica in enumerate(stores.fleet.replicas):
            if replica.is_running and replica.process is started[at]:
                continue
            if at not in starting:
                starting.add(at)
                ways = [stores.to_postgres[at], *([] if at in cut_off else [stores.to_redis[at]])]
                for way in ways:
                    await way.turn(Mood.UP)
            if replica.is_running and await is_ready("127.0.0.1", replica.port):
                started[at] = replica.process
                starting.discard(at)
        await asyncio.sleep(0.2)


async def _cut_off(stores: FickleStores, storm: Storm, cut_off: set[int], turns: Turns) -> None:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    for number, at_s in enumerate(storm.partitions):
        await asyncio.sleep(began_s + at_s - loop.time())
        gateway = number % GATEWAYS
        way = stores.to_redis[gateway]
        dies = number % 3 == 2
        cut_off.add(gateway)
        await way.turn(Mood.REFUSING if dies else Mood.BLACK_HOLE)
        await asyncio.sleep(storm.partition_s / 2)
        if dies:
            stores.fleet.replicas[gateway].send(storm.kills_with)
            turns.kills += 1
        await asyncio.sleep(storm.partition_s / 2)
        turns.partitions += 1
        cut_off.remove(gateway)


async def _now_and_then(
    every_s: float, draw: random.Random, end_s: float, strike: Callable[[], Awaitable[None]]
) -> None:
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(every_s * (0.5 + draw.random()))
        if loop.time() < end_s:
            await strike()


async def _kill(
    stores: FickleStores, storm: Storm, cut_off: set[int], draw: random.Random, turns: Turns
) -> None:
    """Kill one of the gateways that serve; `keep_running` starts it again."""
    ready = [
        replica
        for at, replica in enumerate(stores.fleet.replicas)
        if at not in cut_off and replica.is_running and await is_ready("127.0.0.1", replica.port)
    ]
    if ready:
        draw.choice(ready).send(storm.kills_with)
        turns.kills += 1


async def _crash_postgres(stores: FickleStores, turns: Turns) -> None:
    await stores.restart_postgres()
    turns.postgres_restarts += 1


async def _kill_redis(stores: FickleStores, turns: Turns) -> None:
    await stores.kill_redis()
    turns.redis_kills += 1


@asynccontextmanager
async def fickle_stores(
    directory: Path, *, seed: int = 1, **settings: str
) -> AsyncIterator[FickleStores]:
    """Start two gateways and their four ways, all open."""
    stores = directory / "stores"
    sockets = stores / "sockets"
    url = f"postgresql://{LOGIN}@/{DATABASE}?host={sockets}"
    async with AsyncExitStack() as stack:
        to_redis = [FaultProxy(str(sockets / SOCKET), None, seed=at) for at in range(GATEWAYS)]
        to_postgres = [PostgresProxy(url) for _ in range(GATEWAYS)]
        for proxy in (*to_redis, *to_postgres):
            await stack.enter_async_context(proxy)

        def own(at: int) -> dict[str, str]:
            return {"SLUICE_DATABASE_URL": to_postgres[at].url}

        fleet = await stack.enter_async_context(
            running_fleet(directory, size=GATEWAYS, redis_proxies=to_redis, own=own, **settings)
        )
        assert fleet.servers.sockets == sockets, "the directory's name is too long"
        await fleet.redis.aclose()
        fleet.redis = impatient(fleet.servers.redis_url())
        stack.push_async_callback(fleet.redis.aclose)
        yield FickleStores(
            fleet,
            to_redis[0],
            stores,
            "",
            to_redis=_fickle(to_redis, f"{seed}:redis"),
            to_postgres=_fickle(to_postgres, f"{seed}:postgres"),
        )


def _fickle(proxies: Sequence[FaultProxy], seed: str) -> list[Fickle]:
    return [
        Fickle(proxy, random.Random(f"{seed}:{number}")) for number, proxy in enumerate(proxies)
    ]
