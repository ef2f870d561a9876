"""PostgreSQL stopped under a fleet that serves, and a gateway killed in the middle of it.

Its processes are stopped, as it is worst: nothing is refused, all that is asked hangs. Keys that
were in use go on being served, and every answer is in the journal of its gateway, from which it
reaches the ledger afterwards: that of the killed gateway by its restart. Each answer that came to
its end must have its one row; what died with the gateway may have one.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import UUID

from tests.faults.replica import is_ready
from tests.soak.faulty_stores import HARD, FaultyStores, faulty_stores, stopped
from tests.soak.fleet import completion, until
from tests.soak.live_gateway import percentile
from tests.soak.steady_load import Asked, Caller, SteadyLoad
from tests.soak.weathered import HARD_SHORT, HARD_STREAM, SOFT_SHORT, SOFT_STREAM, Answers

GATEWAYS: Final = 3
RATE: Final = 100.0
_OUT_OF_REACH: Final = 10**9
_NEWS_S, _PATIENCE_S = 1.0, 60.0
# What a gateway answers in the time that a row needs, and more.
_ON_THEIR_WAY: Final = 50
_ROWS: Final = "SELECT request_id AS id FROM usage_events"
_BY_HOUR: Final = "SELECT coalesce(sum(requests), 0) FROM usage_hourly"


@dataclass
class Away:
    """Hold what was seen.

    `died` are requests that were running when their gateway was killed. Of the ledger: `missing`
    are answers without a row, `unasked` rows beyond all answers and all that died.
    """

    away_s: float
    answers: Answers = field(default_factory=Answers)
    hard_5xx: int = 0
    whole: int = 0
    died: int = 0
    rows: int = 0
    missing: int = 0
    unasked: int = 0
    duplicates: int = 0
    requests_by_hour: int = 0
    looks: int = 0
    unready: int = 0
    gateways_degraded: int = 0
    max_depth: int = 0
    depth_gone_s: float = float("inf")
    restarted_s: float = 0.0
    replayed_s: float = float("inf")
    calm_p99_s: float = 0.0
    away_p50_s: float = 0.0
    away_p99_s: float = 0.0
    away_max_s: float = 0.0
    held: int = 0
    used: int = 0
    billed: int = 0


async def postgres_away(directory: Path, *, away_s: float) -> Away:
    """Take PostgreSQL away from a fleet for so long."""
    async with faulty_stores(directory, size=GATEWAYS) as stores:
        return await take_postgres_away(stores, away_s=away_s)


async def take_postgres_away(
    stores: FaultyStores, *, away_s: float, calm_s: float = 3.0, hurry: bool = False
) -> Away:
    """Do so under a load; what comes after is as long as it takes.

    In a `hurry` nobody streams, and what the killed gateway held is not waited for, which is let go
    after half a minute.
    """
    loop = asyncio.get_running_loop()
    fleet, result = stores.fleet, Away(away_s)
    await fleet.admin("PATCH", f"/quotas/tenant/{HARD}", {"daily_tokens": _OUT_OF_REACH})
    await asyncio.sleep(_NEWS_S)
    before = {row["id"] for row in await fleet.database.fetch(_ROWS)}
    load = SteadyLoad([replica.port for replica in fleet.replicas])
    streams = [] if hurry else _streams(stores)
    async with load.running(_callers(stores), rate=RATE, streams=streams):
        await asyncio.sleep(calm_s)
        begun_s = loop.time()
        with stopped(stores.postgres_pids()):
            async with _looking(stores, load, result):
                await asyncio.sleep(away_s / 2)
                killed_s = await _kill(stores, load)
                await asyncio.sleep(away_s / 2)
        ended_s = loop.time()
        await _until_drained(stores, load, result)
        await asyncio.sleep(1)
    await _until_quiet(stores, result, until_settled=not hurry)
    _judge(load, result, begun_s, killed_s, ended_s)
    await _compare(stores, load, result, before)
    return result


def _callers(stores: FaultyStores) -> list[Caller]:
    body = completion(16, 4)
    return [Caller(SOFT_SHORT, stores.soft_key, body), Caller(HARD_SHORT, stores.fleet.key, body)]


def _streams(stores: FaultyStores) -> list[Caller]:
    body = completion(16, 300, stream=True)
    soft = Caller(SOFT_STREAM, stores.soft_key, body, streams=True)
    hard = Caller(HARD_STREAM, stores.fleet.key, body, streams=True)
    size = len(stores.fleet.replicas)
    return [*[soft] * size, *[hard] * size]


async def _kill(stores: FaultyStores, load: SteadyLoad) -> float:
    """Kill the last gateway; return when."""
    replica = stores.fleet.replicas[load.open.pop()]
    replica.send(signal.SIGKILL)
    await replica.wait_ended()
    return asyncio.get_running_loop().time()


@asynccontextmanager
async def _looking(stores: FaultyStores, load: SteadyLoad, result: Away) -> AsyncIterator[None]:
    """Look during the block, without the database, whether gateways are ready and what waits."""
    degraded: set[int] = set()

    async def look() -> None:
        while True:
            for at in list(load.open):
                result.looks += 1
                ready = await is_ready("127.0.0.1", stores.fleet.replicas[at].port)
                result.unready += not ready and at in load.open
            await asyncio.sleep(0.25)

    task = asyncio.create_task(look())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for at in load.open:
            result.max_depth = max(result.max_depth, await _depth(stores, at))
            if await stores.metric("sluice_auth_degraded", at):
                degraded.add(at)
        result.gateways_degraded = len(degraded)


async def _until_drained(stores: FaultyStores, load: SteadyLoad, result: Away) -> None:
    """Wait until the living have written what waited, and the killed one is back and has too."""
    living, killed = list(load.open), len(load.open)

    async def are_through(gateways: Sequence[int]) -> bool:
        depths = [await _depth(stores, at) for at in gateways]
        return max(depths) <= _ON_THEIR_WAY

    async def restart() -> None:
        replica = stores.fleet.replicas[killed]
        replica.start()
        result.restarted_s = await replica.wait_ready(timeout_s=120)
        load.open.append(killed)
        result.replayed_s = await until(lambda: are_through([killed]), timeout_s=_PATIENCE_S)

    async with asyncio.TaskGroup() as group:
        group.create_task(restart())
        result.depth_gone_s = await until(lambda: are_through(living), timeout_s=_PATIENCE_S)


async def _until_quiet(stores: FaultyStores, result: Away, *, until_settled: bool) -> None:
    async def is_quiet() -> bool:
        result.used, result.held = await stores.window() or (-1, -1)
        result.billed = await stores.billed(HARD)
        is_settled = result.held == 0 and result.used == result.billed
        depths = [await _depth(stores, at) for at in range(len(stores.fleet.replicas))]
        return not any(depths) and (is_settled or not until_settled)

    # Where it never is, the figures say by how much.
    with suppress(TimeoutError):
        await until(is_quiet, timeout_s=_PATIENCE_S)


async def _depth(stores: FaultyStores, at: int) -> int:
    return int(await stores.metric("sluice_ledger_spool_depth", at))


def _judge(load: SteadyLoad, result: Away, begun_s: float, killed_s: float, ended_s: float) -> None:
    """Tell what died with its gateway from what failed, and read the rest."""
    killed = max(load.open)
    died = [one for one in load.asked if one.gateway == killed and _died(one, killed_s)]
    result.died = len(died)
    load.asked = [one for one in load.asked if one not in died]
    result.whole = sum(one.status == 200 and one.is_whole for one in load.asked)
    result.answers.read(load)
    hard = load.of(HARD_SHORT, HARD_STREAM)
    result.hard_5xx = sum(one.status >= 500 or one.status == 0 for one in hard)
    short = [one for one in load.asked if one.caller in (SOFT_SHORT, HARD_SHORT)]
    calm = [one.took_s for one in short if one.sent_s < begun_s]
    away = [one.took_s for one in short if begun_s <= one.sent_s < ended_s]
    result.calm_p99_s = percentile(calm, 0.99)
    result.away_p50_s, result.away_p99_s = percentile(away, 0.5), percentile(away, 0.99)
    result.away_max_s = max(away)


def _died(one: Asked, killed_s: float) -> bool:
    is_broken = one.status == 0 or (one.status == 200 and not one.is_whole)
    return is_broken and one.sent_s <= killed_s <= one.answered_s + 1


async def _compare(stores: FaultyStores, load: SteadyLoad, result: Away, before: set[UUID]) -> None:
    """Hold what clients were answered against what the ledger got, request by request."""
    database = stores.fleet.database
    found = await database.fetch(_ROWS)
    rows = [row["id"].hex for row in found if row["id"] not in before]
    whole = {one.request_id for one in load.asked if one.status == 200 and one.is_whole}
    assert len(whole) == result.whole, "ids of requests are unique"
    result.rows = len(rows)
    result.duplicates = len(rows) - len(set(rows))
    result.missing = len(whole - set(rows))
    result.unasked = max(len(set(rows) - whole) - result.died, 0)
    result.requests_by_hour = int(await database.fetchval(_BY_HOUR)) - len(before)
