"""Everything at once: roll-outs, overload, stores killed and half up, a partition, attacks.

Two gateways on one PostgreSQL and one Valkey, each with ways of its own to both that change their
mind every two seconds (`tests.soak.fickle_stores`). Sixty-four clients ask for more than the
engines can do, most by keys with hard caps; a tenant attacks in seven ways; and a victim has a
batch and asks steadily, as an SDK does: what may be tried again is, for a minute. What was answered
is held against the ledger afterwards, request by request (`tests.soak.stores_between`).
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import uvloop

from scheduler.bench.report import Figure, at_least, at_most
from tests.faults.cases import Target, post
from tests.faults.wire import BadAnswer, NoAnswer, read_body, read_head
from tests.soak.fickle_stores import FickleStores, Storm
from tests.soak.fleet import MODEL, Fleet, completion
from tests.soak.fleet_batches import MAY_COME_AGAIN, RETRY_S, run_batch
from tests.soak.live_gateway import percentile
from tests.soak.stores_between import Between, stores_between

Part = tuple[dict[str, Figure], dict[str, Any]]
FOR_S: Final = 600.0
ITEMS: Final = 500
CLIENTS: Final = 64
# Of each gateway: the clients ask for several times as much.
ROWS: Final = 8
ATTACKS: Final = (
    "lists",
    "numbers",
    "strings",
    "anonymous",
    "cancelled",
    "half_heads",
    "half_bodies",
)
_SPELL_S: Final = 6.0
_VICTIM_EVERY_S: Final = 0.25
_PATIENCE_S: Final = 60.0
_BATCH_DONE_S: Final = 300.0
_AWAY: Final = (OSError, NoAnswer, BadAnswer, asyncio.IncompleteReadError, TimeoutError)


@dataclass
class Chaos:
    """Hold what became of those who had nothing to do with it."""

    victim_asked: int = 0
    victim_failed: list[str] = field(default_factory=list)
    victim_tries: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    victim_latency_s: list[float] = field(default_factory=list)
    streams_without_end: list[str] = field(default_factory=list)
    items: int = 0
    items_done: int = 0
    attacks: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))


def chaos(directory: Path, scale: float = 1.0) -> Part:
    """Let all of it happen for ten minutes, and see what was lost."""
    for_s, chaos = max(45.0, FOR_S * scale), Chaos(items=max(50, round(ITEMS * scale)))
    storm = Storm(
        for_s,
        partitions=[for_s * part for part in (0.15, 0.5, 0.75)],
        partition_s=min(45.0, for_s / 6),
        kill_s=max(15.0, for_s / 20),
        postgres_s=for_s / 4,
        redis_s=for_s / 4,
        kills_with=signal.SIGTERM,
    )

    @asynccontextmanager
    async def others(stores: FickleStores) -> AsyncIterator[None]:
        async with _beside(stores, chaos):
            yield

    result = uvloop.run(
        stores_between(
            directory,
            storm,
            clients=CLIENTS,
            keys=max(20, round(400 * scale)),
            beside=others,
            SLUICE_MAX_NUM_SEQS=str(ROWS),
            SLUICE_SHUTDOWN_GRACE_S="20",
            # A batch is read by whichever gateway comes to it.
            SLUICE_FILE_STORAGE=str(directory / "files"),
        )
    )
    beside = {
        "victim_tries": dict(chaos.victim_tries),
        "victim_failed": chaos.victim_failed,
        "streams_without_end": chaos.streams_without_end,
        "attacks": dict(chaos.attacks),
    }
    return _figures(result, chaos), {"chaos": {"between": asdict(result), "beside": beside}}


def _figures(result: Between, chaos: Chaos) -> dict[str, Figure]:
    words = result.words
    asked = max(result.requests, 1)
    refused = sum(n for word, n in words.items() if word[:3] in ("429", "503"))
    over = max(result.redis_overshoot, result.ledger_overshoot)
    return {
        "overshoot_tokens": at_most(over, 0, "tokens"),
        "duplicate_rows": at_most(result.duplicates, 0, "rows"),
        "missing_rows": at_most(result.missing, 0, "rows"),
        "lost_batch_items": at_most(chaos.items - chaos.items_done, 0, "items"),
        "streams_without_end": at_most(len(chaos.streams_without_end), 0, "streams"),
        "victim_failed": at_most(len(chaos.victim_failed), 0, "requests"),
        "victim_asked": at_least(chaos.victim_asked, 10, "requests"),
        "victim_tries": Figure(sum(chaos.victim_tries.values()), "requests"),
        "victim_p99_s": Figure(percentile(chaos.victim_latency_s, 0.99), "s"),
        "requests": Figure(result.requests, "requests"),
        "refused_share": Figure(refused / asked, "share"),
        "restarts": at_least(result.turns.kills, 2, "restarts"),
        "redis_kills": at_least(result.turns.redis_kills, 1, "kills"),
        "postgres_restarts": at_least(result.turns.postgres_restarts, 1, "restarts"),
        "partitions": at_least(result.turns.partitions, 1, "partitions"),
        "attack_spells": at_least(sum(chaos.attacks.values()), len(ATTACKS), "spells"),
        "held_gone_s": at_most(result.held_gone_s, 40, "s"),
    }


@asynccontextmanager
async def _beside(stores: FickleStores, chaos: Chaos) -> AsyncIterator[None]:
    """Have the victim, the batch and the attacks go on while the block runs, and end well after."""
    fleet = stores.fleet
    keys = {}
    for tenant in ("victim", "attacker"):
        await fleet.admin("POST", "/tenants", {"name": tenant})
        keys[tenant] = (await fleet.admin("POST", "/keys", {"tenant": tenant}))["key"]
    over = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(_ask_steadily(fleet, keys["victim"], chaos, over))
        group.create_task(_batch(fleet, keys["victim"], chaos))
        for kind in ATTACKS:
            group.create_task(_attack(fleet, keys["attacker"], kind, chaos, over))
        try:
            yield
        finally:
            over.set()


async def _ask_steadily(fleet: Fleet, key: str, chaos: Chaos, over: asyncio.Event) -> None:
    draw = random.Random(1)
    async with asyncio.TaskGroup() as group:
        while not over.is_set():
            group.create_task(_ask_patiently(fleet, key, draw, chaos))
            await asyncio.sleep(_VICTIM_EVERY_S)


async def _ask_patiently(fleet: Fleet, key: str, draw: random.Random, chaos: Chaos) -> None:
    """Ask until there is a whole answer, as long as an SDK's patience lasts."""
    chaos.victim_asked += 1
    streams = draw.random() < 0.5
    began_s = time.monotonic()
    word = "not asked"
    while time.monotonic() < began_s + _PATIENCE_S:
        target = Target("127.0.0.1", draw.choice(fleet.replicas).port, key, MODEL)
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                word, is_final = await _try(target, streams=streams, chaos=chaos)
        chaos.victim_tries[word] += 1
        if word == "answered":
            chaos.victim_latency_s.append(time.monotonic() - began_s)
            return
        if is_final:
            break
        await asyncio.sleep(RETRY_S * (0.5 + draw.random()))
    chaos.victim_failed.append(word)


async def _try(target: Target, *, streams: bool, chaos: Chaos) -> tuple[str, bool]:
    """Send one request; returns what became of it, and whether it is no use to send it again."""
    status, what = 0, ""
    try:
        reader, writer = await asyncio.open_connection(target.host, target.port)
    except OSError as exc:
        return type(exc).__name__, False
    try:
        body = completion(8, 8, **({"stream": True} if streams else {}))
        writer.write(post(target, "/v1/completions", body, close=True))
        status, headers = await read_head(reader)
        what = headers.get("x-request-id", "")
        answer = await read_body(reader, status, headers)
    except _AWAY as exc:
        if status == 200 and streams:
            chaos.streams_without_end.append(f"{what}: {exc!r}")
        return f"{status} {type(exc).__name__}", False
    finally:
        writer.transport.abort()
    if status != 200:
        return f"{status} {json.loads(answer)['error']['code']}", status not in MAY_COME_AGAIN
    if not streams or answer.endswith(b"data: [DONE]\n\n"):
        return "answered", True
    if b'"error"' not in answer.rpartition(b"data: ")[2]:
        chaos.streams_without_end.append(f"{what}: {answer[-200:]!r}")
    return "200 ended with an error", False


async def _batch(fleet: Fleet, key: str, chaos: Chaos) -> None:
    """Run a batch through it, and count the items whose results are there, once each."""
    ports = [replica.port for replica in fleet.replicas]
    chaos.items_done = await run_batch(
        ports, key, items=chaos.items, timeout_s=FOR_S + _BATCH_DONE_S
    )


async def _attack(fleet: Fleet, key: str, kind: str, chaos: Chaos, over: asyncio.Event) -> None:
    """Attack one gateway after the other, in spells; a gateway that is gone ends one early."""
    draw = random.Random(kind)
    while not over.is_set():
        at = draw.randrange(len(fleet.replicas))
        job = {
            "kind": kind,
            "for_s": _SPELL_S,
            "connections": 2,
            "apart_s": 1.0,
            "at_least": 1,
            "host": "127.0.0.1",
            "port": fleet.replicas[at].port,
            "key": key,
            "model": MODEL,
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.soak.wall_clients",
            "attack",
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        with suppress(TimeoutError):
            async with asyncio.timeout(10 * _SPELL_S):
                await process.communicate(f"{json.dumps(job)}\n\n".encode())
        if process.returncode is None:
            process.kill()
            await process.wait()
        chaos.attacks[kind] += process.returncode == 0
        await asyncio.sleep(draw.random())
