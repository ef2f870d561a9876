"""Two gateways on one PostgreSQL and one Valkey that are neither up nor down for minutes.

Every way of a gateway to a store changes its mind every two seconds; gateways are killed, both
stores too, and one gateway at a time is cut off from Valkey for longer than leases last. What was
answered is then held against the ledger, request by request. All the while every cap is looked at
in Valkey and in the ledger.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import asyncpg
from redis.exceptions import RedisError

from tests.counted import counted, newest_slot
from tests.faults.replica import is_ready
from tests.soak.balance import LEASES
from tests.soak.between_clients import CappedKey, Crowd, Got
from tests.soak.faulty_stores import SOFT
from tests.soak.fickle_stores import FickleStores, Storm, Turns, fickle_stores, keep_running, rage
from tests.soak.fleet import TENANT, Fleet, until

CLIENTS: Final = 64
CAP_TOKENS: Final = 10_000
_OUT_OF_REACH: Final = 10**12
_NEWS_S, _BILLED_S, _STEADY_S, _READY_S, _HELD_GONE_S = 1.5, 2.0, 5.0, 120.0, 120.0
# Longer than a transaction may hang that the storm's last black hole swallowed.
_AGREE_S: Final = 60.0
_BILLED: Final = (
    "SELECT key_id, sum(input_tokens + output_tokens) AS tokens FROM usage_events GROUP BY key_id"
)
_ROWS: Final = (
    "SELECT request_id, input_tokens + output_tokens AS tokens, outcome FROM usage_events"
)
_BY_HOUR: Final = "SELECT coalesce(sum(requests), 0) FROM usage_hourly"
_AWAY: Final = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError)
_TOLD: Final = {
    "mended": "is mended",
    "outlived_leases": "outlived its lease",
    "late_renewals": "was late to renew",
    "billed_for_the_dead": "of processes that died",
    "tracebacks": "Traceback",
}


@dataclass
class Between:
    """Hold what was seen; amounts are tokens.

    `overshoot` is the most by which any cap was passed in a sample, of Redis and of the ledger;
    `delivered_over` by what whole answers brought. Of rows without a whole answer `broken` are
    those of requests whose client left or saw its answer break off, and `headless` those that may
    be of a request of which its client never learned the name. `apart` is what the counter of a
    cap has used minus what the ledger billed, of the worst.
    """

    requests: int = 0
    words: dict[str, int] = field(default_factory=dict)
    turns: Turns = field(default_factory=Turns)
    seconds: float = 0.0
    keys_asked_by: int = 0
    redis_samples: int = 0
    ledger_samples: int = 0
    redis_overshoot: int = 0
    ledger_overshoot: int = 0
    delivered_over: int = 0
    answers: int = 0
    rows: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    missing: int = 0
    duplicates: int = 0
    broken: int = 0
    headless: int = 0
    unexplained: int = 0
    rows_by_hour: int = 0
    billed_above_answers: int = 0
    billed_below_answers: int = 0
    held: int = 0
    held_gone_s: float = float("inf")
    apart: int = 0
    worst_key: str = ""
    apart_tenant: int = 0
    told: dict[str, int] = field(default_factory=dict)
    worst: list[str] = field(default_factory=list)


async def stores_between(
    directory: Path,
    storm: Storm,
    *,
    clients: int = CLIENTS,
    keys: int,
    seed: int = 1,
    beside: Callable[[FickleStores], AbstractAsyncContextManager[object]] = nullcontext,
    **settings: str,
) -> Between:
    """Ask through a storm, wait until all is quiet, and compare; `beside` it goes on what likes."""
    settings = {"SLUICE_MAX_NUM_SEQS": "64", **settings}
    async with fickle_stores(directory, seed=seed, **settings) as stores:
        result = Between()
        crowd = await crowd_of(stores.fleet, keys, seed)
        sampling = asyncio.create_task(_sample(stores, crowd, result))
        keeping = asyncio.create_task(keep_running(stores.fleet, result.turns))
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(crowd.run(clients))
                async with beside(stores):
                    try:
                        await rage(stores, storm, result.turns, random.Random(seed))
                    finally:
                        crowd.over.set()
                result.seconds = loop.time() - began_s
                await until_quiet(stores.fleet, crowd, result)
        finally:
            for task in (sampling, keeping):
                task.cancel()
            await asyncio.gather(sampling, keeping, return_exceptions=True)
        await _look_at_ledger(stores, crowd, result)
        await judge(stores.fleet, crowd, result)
    result.told = _told(directory)
    return result


def _told(directory: Path) -> dict[str, int]:
    """Count what the gateways' logs say of quotas."""
    logs = "".join(log.read_text() for log in directory.glob("gateway-*.log"))
    return {name: logs.count(words) for name, words in _TOLD.items()}


async def crowd_of(fleet: Fleet, keys: int, seed: int, *, ports: Sequence[int] = ()) -> Crowd:
    """Make the keys and the tenant of rates; they ask `ports`, or every gateway."""
    await fleet.admin("PATCH", f"/quotas/tenant/{TENANT}", {"daily_tokens": _OUT_OF_REACH})
    capped = []
    for _ in range(keys):
        issued = await fleet.admin("POST", "/keys", {"tenant": TENANT})
        capped.append(CappedKey(issued["key"], issued["id"]))
        await fleet.admin("PATCH", f"/quotas/key/{issued['id']}", {"daily_tokens": CAP_TOKENS})
    await fleet.admin("POST", "/tenants", {"name": SOFT})
    rates = {"rpm": 10**6, "input_tpm": 10**8, "output_tpm": 10**8, "concurrency": 10**5}
    await fleet.admin("PATCH", f"/quotas/tenant/{SOFT}", rates)
    soft = await fleet.admin("POST", "/keys", {"tenant": SOFT})
    await asyncio.sleep(_NEWS_S)
    ports = ports or [replica.port for replica in fleet.replicas]
    return Crowd(ports, capped, soft["key"], seed)


async def _sample(stores: FickleStores, crowd: Crowd, result: Between) -> None:
    """Look at every cap in Redis ten times a second, and in the ledger every second."""
    number = 0
    while True:
        await asyncio.sleep(0.1)
        with suppress(RedisError, OSError):
            await _look_at_redis(stores, crowd, result)
        number += 1
        if number % 10 == 0:
            with suppress(*_AWAY):
                await _look_at_ledger(stores, crowd, result)


async def _look_at_redis(stores: FickleStores, crowd: Crowd, result: Between) -> None:
    begun = crowd.keys[: crowd.in_turn + 1]
    found = await stores.fleet.redis.mget([f"sluice:q:key:{key.id}" for key in begun])
    result.redis_samples += 1
    for key, stored in zip(begun, found, strict=True):
        over = sum(newest_slot(stored, "tokens.day")) - CAP_TOKENS
        if over > result.redis_overshoot:
            result.redis_overshoot = over
            result.worst.append(f"Redis: {key.id} by {over}")


async def _look_at_ledger(stores: FickleStores, crowd: Crowd, result: Between) -> None:
    capped = {key.id for key in crowd.keys}
    billed = await stores.fleet.database.fetch(_BILLED)
    result.ledger_samples += 1
    for row in billed:
        over = int(row["tokens"]) - CAP_TOKENS
        if str(row["key_id"]) in capped and over > result.ledger_overshoot:
            result.ledger_overshoot = over
            result.worst.append(f"ledger: {row['key_id']} by {over}")


async def until_quiet(fleet: Fleet, crowd: Crowd, result: Between) -> None:
    """Wait until nothing is held, then until counters and ledger agree; note how they ended."""
    scopes = [f"key:{key.id}" for key in crowd.keys] + [f"tenant:{fleet.tenant_id}"]

    loop = asyncio.get_running_loop()
    began_s = last_s = loop.time()

    async def nothing_held() -> bool:
        nonlocal last_s
        try:
            stored = await fleet.redis.mget([f"sluice:q:{scope}" for scope in scopes])
            leases = await fleet.redis.zcard(LEASES)
        except (RedisError, OSError):
            stored, leases = [], 1
        fields = [field for one in stored for field in counted(one).items()]
        result.held = int(sum(value for name, value in fields if ":h:" in name))
        if result.held or leases:
            last_s = loop.time()
        # What a Redis that was killed just now has forgotten is held again soon.
        return loop.time() - last_s > _STEADY_S

    async def all_ready() -> bool:
        return all([await is_ready("127.0.0.1", one.port) for one in fleet.replicas])

    async def agree() -> bool:
        stored = await fleet.redis.mget([f"sluice:q:{scope}" for scope in scopes])
        rows = await fleet.database.fetch(_BILLED)
        billed = {str(row["key_id"]): int(row["tokens"]) for row in rows}
        # All slots: midnight may have passed.
        used = [
            int(sum(v for name, v in counted(one).items() if name.startswith("tokens.day:u:")))
            for one in stored
        ]
        apart = [
            tokens - billed.get(key.id, 0)
            for key, tokens in zip(crowd.keys, used[:-1], strict=True)
        ]
        in_all = sum(billed.get(key.id, 0) for key in crowd.keys)
        result.apart = max(apart, key=abs)
        result.worst_key = crowd.keys[apart.index(result.apart)].id
        result.apart_tenant = used[-1] - in_all
        return not result.apart and not result.apart_tenant

    # Where it never is, the figures say by how much.
    with suppress(TimeoutError):
        await until(nothing_held, timeout_s=_HELD_GONE_S)
        result.held_gone_s = last_s - began_s
    await until(all_ready, timeout_s=_READY_S)
    await crowd.touch()
    # Their bills have reached neither yet.
    await asyncio.sleep(_BILLED_S)
    with suppress(TimeoutError):
        await until(agree, timeout_s=_AGREE_S)


async def judge(fleet: Fleet, crowd: Crowd, result: Between) -> None:
    """Hold what clients got against the ledger, request by request."""
    database = fleet.database
    rows = await database.fetch(_ROWS)
    ids = [row["request_id"].hex for row in rows]
    billed = {row["request_id"].hex: int(row["tokens"]) for row in rows}
    named = {got.request_id: got for got in crowd.got if got.request_id}
    whole = {id_: got for id_, got in named.items() if got.is_whole}
    result.requests, result.words = len(crowd.got), dict(crowd.words.most_common())
    result.keys_asked_by = crowd.in_turn + 1
    result.answers, result.rows = len(whole), len(rows)
    result.outcomes = dict(Counter(row["outcome"] for row in rows))
    result.rows_by_hour = int(await database.fetchval(_BY_HOUR))
    result.duplicates = len(ids) - len(billed)
    result.missing = len(whole.keys() - billed.keys())
    result.worst += [f"missing: {id_}" for id_ in whole.keys() - billed.keys()]
    result.broken = len((billed.keys() & named.keys()) - whole.keys())
    unnamed = len(billed.keys() - named.keys())
    result.headless = sum(not got.request_id for got in crowd.got)
    result.unexplained = max(unnamed - result.headless, 0)
    result.headless = min(unnamed, result.headless)
    for id_, got in whole.items():
        more = billed.get(id_, got.tokens) - got.tokens
        result.billed_above_answers += max(more, 0)
        result.billed_below_answers += max(-more, 0)
    result.delivered_over = max(_delivered(crowd.got).values(), default=0) - CAP_TOKENS


def _delivered(all_got: list[Got]) -> Counter[str]:
    """Sum what whole answers brought to each key that has a cap."""
    delivered: Counter[str] = Counter()
    for got in all_got:
        if got.key_id and got.is_whole:
            delivered[got.key_id] += got.tokens
    return delivered
