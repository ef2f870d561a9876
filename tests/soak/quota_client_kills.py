"""Bare clients of the quotas, one of four killed every 150 ms, around a cap."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import asyncpg
from redis.asyncio import Redis

from gateway.settings import Settings
from gateway.store import open_store
from gateway.store.embedded import EmbeddedServers
from gateway.store.postgres_server import OWNER, SUPERUSER
from tests.counted import newest_slot
from tests.soak.fleet import until
from tests.soak.quota_client import spec_json

WORKERS: Final = 4


@dataclass
class ClientsKilled:
    """Hold what was seen. Amounts are tokens."""

    cap: int
    kills: int = 0
    samples: int = 0
    max_used_and_held: int = 0
    requests: int = 0
    billed: int = 0
    used: int = 0
    lost_rows: int = 0
    held_gone_s: float = 0.0
    seconds: float = 0.0


async def killed_clients(
    directory: Path, *, for_s: float, cap: int, every_s: float = 0.15, seed: int = 1
) -> ClientsKilled:
    """Kill for a while, then wait until nothing is held, and compare."""
    result = ClientsKilled(cap)
    with EmbeddedServers(directory / "stores") as servers:
        spec = await _prepare(directory, servers, cap)
        redis = Redis.from_url(servers.redis_url())
        database = await asyncpg.create_pool(servers.database_url(SUPERUSER), min_size=1)
        zygote = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.soak.quota_client",
            spec,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            await _kill(zygote, redis, result, for_s, every_s, random.Random(seed))
            await _settle(zygote, redis, database, result)
        finally:
            zygote.kill()
            await zygote.wait()
            await redis.aclose()
            await database.close()
    return result


async def _prepare(directory: Path, servers: EmbeddedServers, cap: int) -> str:
    """Make the schema and a tenant; return the clients' spec."""
    settings = Settings(
        data_dir=directory / "first",
        database_url=servers.database_url(),
        database_owner_url=servers.database_url(OWNER),
        redis_url=servers.redis_url(),
    )
    async with open_store(settings) as store:
        assert store.first_start is not None
        key = store.first_start.keys[0].key
        organisation = await store.organisations.default()
    return spec_json(
        database_url=servers.database_url(),
        redis_url=servers.redis_url(),
        spool=str(directory / "spool"),
        organisation_id=str(organisation.id),
        tenant_id=str(key.tenant_id),
        key_id=str(key.id),
        cap=cap,
    )


async def _fork(zygote: asyncio.subprocess.Process, how: str = "work") -> int:
    assert zygote.stdin is not None
    assert zygote.stdout is not None
    zygote.stdin.write(f"{how}\n".encode())
    return int(await zygote.stdout.readline())


async def _kill(
    zygote: asyncio.subprocess.Process,
    redis: Redis,
    result: ClientsKilled,
    for_s: float,
    every_s: float,
    draw: random.Random,
) -> None:
    workers = [await _fork(zygote) for _ in range(WORKERS)]
    over = asyncio.Event()
    sampling = asyncio.create_task(_sample(redis, result, over.is_set))
    began = time.monotonic()
    while time.monotonic() - began < for_s:
        await asyncio.sleep(every_s * (0.5 + draw.random()))
        number = draw.randrange(WORKERS)
        os.kill(workers[number], signal.SIGKILL)
        workers[number] = await _fork(zygote)
        result.kills += 1
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    over.set()
    await sampling
    result.seconds = time.monotonic() - began


async def _sample(redis: Redis, result: ClientsKilled, is_over: Callable[[], bool]) -> None:
    while not is_over():
        used, held = await _window(redis)
        result.samples += 1
        result.max_used_and_held = max(result.max_used_and_held, used + held)
        await asyncio.sleep(0.05)


async def _settle(
    zygote: asyncio.subprocess.Process, redis: Redis, database: asyncpg.Pool, result: ClientsKilled
) -> None:
    sweeper = await _fork(zygote, "sweep")

    async def nothing_held() -> bool:
        return (await _window(redis))[1] == 0

    async def agree() -> bool:
        return await _billed(database) == (await _window(redis))[0]

    result.held_gone_s = await until(nothing_held, timeout_s=60)
    # Where they never do, the figures say by how much.
    with contextlib.suppress(TimeoutError):
        await until(agree, timeout_s=30)
    os.kill(sweeper, signal.SIGKILL)
    result.used = (await _window(redis))[0]
    result.billed = await _billed(database)
    row = await database.fetchrow(
        "SELECT count(*) AS rows, count(*) FILTER (WHERE outcome = 'lost') AS lost "
        "FROM usage_events"
    )
    assert row is not None
    result.requests, result.lost_rows = row["rows"], row["lost"]


async def _billed(database: asyncpg.Pool) -> int:
    return int(
        await database.fetchval(
            "SELECT coalesce(sum(input_tokens + output_tokens), 0) FROM usage_events"
        )
    )


async def _window(redis: Redis) -> tuple[int, int]:
    """Return what the day has used and holds, from Redis itself."""
    for key in await redis.keys("sluice:q:tenant:*"):
        return newest_slot(await redis.get(key), "tokens.day")
    return 0, 0
