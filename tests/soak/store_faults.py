"""Faults of Redis under a fleet that serves: what its tenants see of them, and what it counts.

One tenant has rates, which gateways can keep by themselves: it is to see nothing but a header. The
other has a daily cap that nobody may pass: it is refused for as long as nobody can count, and its
cap is set so that it is reached shortly after the last fault, where whatever was let through
wrongly would be above it. Short requests come at a steady rate, and streams long enough to need
more tokens granted run across the faults.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.soak.faulty_stores import HARD, FaultyStores, faulty_stores
from tests.soak.fleet import completion, until
from tests.soak.steady_load import Caller, SteadyLoad
from tests.soak.weathered import (
    HARD_SHORT,
    HARD_STREAM,
    SOFT_SHORT,
    SOFT_STREAM,
    Answers,
    Weathered,
)

GATEWAYS: Final = 2
RATE: Final = 50.0
# A stream is granted 256 tokens at first.
_PROMPT, _OUTPUT, _LONG_OUTPUT = 16, 4, 280
_STREAM_TOKENS_PER_S: Final = 70
# How long the cap lasts beyond what is calm, for each fault and in the end.
_AFTER_S: Final = 1.2
_BACK_S, _USED_UP_S, _QUIET_S = 30.0, 30.0, 45.0
_NEWS_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """Say how long each fault lasts, and how long it is calm before it."""

    stop_s: float = 20.0
    black_hole_s: float = 10.0
    reset_s: float = 5.0
    calm_s: float = 3.0


@dataclass(frozen=True, slots=True)
class Strike:
    """Bring a fault; `is_away` says that nobody can count from its begin to its end."""

    name: str
    run: Callable[[], Awaitable[None]]
    is_away: bool = False


@dataclass
class Storm:
    """Hold what came of several faults under one load. Amounts are tokens of the hard tenant."""

    cap: int
    faults: list[Weathered] = field(default_factory=list)
    answers: Answers = field(default_factory=Answers)
    samples: int = 0
    max_used_and_held: int = 0
    max_billed: int = 0
    is_used_up: bool = False
    held: int = 0
    used: int = 0
    billed: int = 0


def strikes(stores: FaultyStores, sizes: Sizes) -> list[Strike]:
    """List every fault of Redis."""
    return [
        Strike("killed", stores.kill_redis),
        Strike("flushed", stores.flush_redis),
        Strike("stopped", lambda: stores.stop_redis(sizes.stop_s), is_away=True),
        Strike("black_holed", lambda: stores.black_hole_redis(sizes.black_hole_s), is_away=True),
        Strike("reset", lambda: stores.reset_redis(sizes.reset_s)),
    ]


async def redis_faults(directory: Path, sizes: Sizes, *, rounds: int) -> list[Storm]:
    """Bring every fault over a fleet, each in a storm of its own, `rounds` times."""
    async with faulty_stores(directory, size=GATEWAYS) as stores:
        return [
            await storm(stores, [strike], sizes.calm_s)
            for _ in range(rounds)
            for strike in strikes(stores, sizes)
        ]


async def storm(stores: FaultyStores, strikes: Sequence[Strike], calm_s: float) -> Storm:
    """Let faults strike under a load, one after another, and wait until all is quiet."""
    fleet = stores.fleet
    tokens_per_s = RATE / 2 * (_PROMPT + _OUTPUT) + len(fleet.replicas) * _STREAM_TOKENS_PER_S
    allowed = tokens_per_s * ((calm_s + _AFTER_S) * len(strikes) + _AFTER_S)
    result = Storm(await stores.billed(HARD) + int(allowed))
    await fleet.admin("PATCH", f"/quotas/tenant/{HARD}", {"daily_tokens": result.cap})
    await asyncio.sleep(_NEWS_S)
    load = SteadyLoad([replica.port for replica in fleet.replicas])
    over = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(_sample(stores, result, over))
        async with load.running(_callers(stores), rate=RATE, streams=_streams(stores)):
            for strike in strikes:
                result.faults.append(await _weather(stores, load, strike, calm_s))
            result.is_used_up = await _until_used_up(load, result.faults[-1])
        await _until_quiet(stores, result)
        over.set()
    result.answers.read(load)
    ends = [fault.begun_s for fault in result.faults[1:]] + [float("inf")]
    for fault, until_s in zip(result.faults, ends, strict=True):
        fault.judge(load, until_s)
    return result


async def _weather(
    stores: FaultyStores, load: SteadyLoad, strike: Strike, calm_s: float
) -> Weathered:
    loop = asyncio.get_running_loop()
    calm_from_s = loop.time()
    await asyncio.sleep(calm_s)
    degraded: set[int] = set()
    watching = asyncio.create_task(_watch(stores, degraded))
    begun_s = loop.time()
    await strike.run()
    weathered = Weathered(strike.name, strike.is_away, calm_from_s, begun_s, loop.time())
    watching.cancel()
    weathered.gateways_degraded = len(degraded)

    async def is_back() -> bool:
        return weathered.is_back(load)

    await _patiently(is_back, _BACK_S)
    gateways = range(len(stores.fleet.replicas))
    weathered.gateways_still_degraded = sum([await _is_degraded(stores, at) for at in gateways])
    return weathered


def _callers(stores: FaultyStores) -> list[Caller]:
    body = completion(_PROMPT, _OUTPUT)
    return [Caller(SOFT_SHORT, stores.soft_key, body), Caller(HARD_SHORT, stores.fleet.key, body)]


def _streams(stores: FaultyStores) -> list[Caller]:
    """Return one of each tenant for each gateway, which are asked in turn."""
    body = completion(_PROMPT, _LONG_OUTPUT, stream=True)
    soft = Caller(SOFT_STREAM, stores.soft_key, body, streams=True)
    hard = Caller(HARD_STREAM, stores.fleet.key, body, streams=True)
    size = len(stores.fleet.replicas)
    return [*[soft] * size, *[hard] * size]


async def _until_used_up(load: SteadyLoad, last: Weathered) -> bool:
    """Wait until the hard tenant meets its cap; tell whether it did."""

    async def is_used_up() -> bool:
        return any(one.status == 429 for one in load.of(HARD_SHORT, since_s=last.ended_s))

    return await _patiently(is_used_up, _USED_UP_S)


async def _until_quiet(stores: FaultyStores, result: Storm) -> None:
    """Wait until nothing is held and the counter agrees with the ledger; note how they ended."""

    async def is_quiet() -> bool:
        result.used, result.held = await stores.window() or (-1, -1)
        result.billed = await stores.billed(HARD)
        return result.held == 0 and result.used == result.billed

    await _patiently(is_quiet, _QUIET_S)


async def _patiently(condition: Callable[[], Awaitable[bool]], timeout_s: float) -> bool:
    """Wait for a condition; where it does not come, what was seen says so."""
    try:
        await until(condition, timeout_s=timeout_s)
    except TimeoutError:
        return False
    return True


async def _sample(stores: FaultyStores, result: Storm, over: asyncio.Event) -> None:
    """Look ten times a second what is used and held, every second what was billed."""
    number = 0
    while not over.is_set():
        seen = await stores.window()
        if seen is not None:
            result.samples += 1
            result.max_used_and_held = max(result.max_used_and_held, sum(seen))
        if number % 10 == 0:
            result.max_billed = max(result.max_billed, await stores.billed(HARD))
        number += 1
        await asyncio.sleep(0.1)


async def _watch(stores: FaultyStores, degraded: set[int]) -> None:
    """Note which gateways say that they are degraded."""
    while True:
        for at in range(len(stores.fleet.replicas)):
            if await _is_degraded(stores, at):
                degraded.add(at)
        await asyncio.sleep(0.1)


async def _is_degraded(stores: FaultyStores, at: int) -> bool:
    return await stores.metric("sluice_quota_degraded", at) == 1
