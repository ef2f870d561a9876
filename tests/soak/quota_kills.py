"""Gateways that are killed at random, around a cap that nobody may pass.

Clients ask for tokens through four gateways until many more were asked for than the cap has. All
the while what is used and held is read ten times a second from Redis, and what was billed from
the ledger; neither may ever be above the cap. At the end nothing may be held any more, the two
must agree, and one request must get all that is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.faults.cases import Target, post
from tests.faults.wire import BadAnswer, NoAnswer, read_answer
from tests.soak.fleet import MODEL, Fleet, completion, running_fleet, until

GATEWAYS: Final = 4
CLIENTS: Final = 64
_SETTLED_S: Final = 45


@dataclass
class Killed:
    """Hold what was seen. Amounts are tokens."""

    cap: int
    requests: int = 0
    kills: int = 0
    statuses: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    samples: int = 0
    max_used_and_held: int = 0
    max_billed: int = 0
    billed: int = 0
    used: int = 0
    lost_rows: int = 0
    held_gone_s: float = 0.0
    remainder: int = 0
    remainder_status: int = 0
    seconds: float = 0.0


async def killed_gateways(
    directory: Path, *, requests: int, kills: int, cap: int, every_s: float = 2.0, seed: int = 1
) -> Killed:
    """Ask `requests` times or more, until `kills` gateways were killed."""
    result = Killed(cap)
    async with running_fleet(directory, size=GATEWAYS, SLUICE_MAX_NUM_SEQS="64") as fleet:
        await fleet.admin("PATCH", "/quotas/tenant/acme", {"daily_tokens": cap})
        over = asyncio.Event()
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number in range(CLIENTS):
                draw = random.Random(f"{seed}:{number}")
                group.create_task(_be_client(fleet, draw, result, over))
            sampling = group.create_task(_sample(fleet, result, over))
            await _kill(fleet, random.Random(seed), result, requests, kills, every_s)
            over.set()
        await sampling
        result.seconds = time.monotonic() - began
        await _settle(fleet, result)
    return result


async def _be_client(
    fleet: Fleet, draw: random.Random, result: Killed, over: asyncio.Event
) -> None:
    while not over.is_set():
        replica = draw.choice(fleet.replicas)
        target = Target("127.0.0.1", replica.port, fleet.key, MODEL)
        stream = draw.random() < 0.5
        body = completion(draw.randrange(1, 60), draw.randrange(1, 60), stream=stream)
        result.requests += 1
        try:
            status = await _ask(target, body)
        except (NoAnswer, BadAnswer, OSError, TimeoutError) as exc:
            result.statuses[type(exc).__name__] += 1
            await asyncio.sleep(0.02)
            continue
        result.statuses[str(status)] += 1


async def _ask(target: Target, body: bytes) -> int:
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection(target.host, target.port)
        try:
            writer.write(post(target, "/v1/completions", body, close=True))
            return (await read_answer(reader)).status
        finally:
            writer.transport.abort()


async def _kill(
    fleet: Fleet, draw: random.Random, result: Killed, requests: int, kills: int, every_s: float
) -> None:
    """Kill one gateway after another, each as soon as it may be serving again."""
    while result.kills < kills or result.requests < requests:
        await asyncio.sleep(every_s * (0.5 + draw.random()))
        replica = draw.choice(fleet.replicas)
        if replica.is_running and result.kills < kills:
            replica.send(signal.SIGKILL)
            await replica.wait_ended()
            replica.start()
            result.kills += 1


async def _sample(fleet: Fleet, result: Killed, over: asyncio.Event) -> None:
    while not over.is_set():
        used, held = await fleet.window()
        result.samples += 1
        result.max_used_and_held = max(result.max_used_and_held, used + held)
        if result.samples % 10 == 0:
            result.max_billed = max(result.max_billed, (await fleet.ledger())["tokens"])
        await asyncio.sleep(0.1)


async def _settle(fleet: Fleet, result: Killed) -> None:
    """Wait until nothing is held, compare, and take what is left in one request."""
    for replica in fleet.replicas:
        await replica.wait_ready(timeout_s=120)

    async def nothing_held() -> bool:
        return (await fleet.window())[1] == 0

    result.held_gone_s = await until(nothing_held, timeout_s=_SETTLED_S)

    async def agree() -> bool:
        return (await fleet.ledger())["tokens"] == (await fleet.window())[0]

    # The last bills of the dead are on their way.
    # Where they never do, the figures say by how much.
    with contextlib.suppress(TimeoutError):
        await until(agree, timeout_s=15)
    ledger = await fleet.ledger()
    result.billed, result.lost_rows = ledger["tokens"], ledger["lost"]
    result.max_billed = max(result.max_billed, result.billed)
    result.used = (await fleet.window())[0]
    # Enough that one request can have it, and more than what may be left by chance.
    await fleet.admin("PATCH", "/quotas/tenant/acme", {"daily_tokens": result.used + 500})
    await asyncio.sleep(1.5)
    target = Target("127.0.0.1", fleet.replicas[0].port, fleet.key, MODEL)
    result.remainder_status = await _ask(target, completion(100, 400))
    used, held = await fleet.window()
    result.remainder = result.used + 500 - used - held
