"""Restart two servers in turn, under load that comes through a balancer.

Each server has a data directory of its own and both know the same keys. Clients stream and ask
without streams at about half of what one server computes; a request fails if its answer is not
200 or is not whole, and a stream must end with `[DONE]` or with an `error` event.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gateway.credentials import KEY_PREFIX, new_token
from tests.faults.balancer import Balanced, Balancer
from tests.faults.cases import Target, post
from tests.faults.killer import Killer, Kills
from tests.faults.replica import Replica, free_port
from tests.faults.wire import Answer, BadAnswer, NoAnswer, read_answer

MODEL: Final = "sluice-demo"
# 15 ms a step, so that a stream lasts as long as a real one and is caught by restarts.
FLAGS: Final = ("--engine", "simulated", "--engine-profile", "a100-llama-3-8b")
# Half of the 16 rows that one server may compute at a time.
MAX_NUM_SEQS, CLIENTS = 16, 8
_KEPT_FAILURES: Final = 50


@dataclass
class Rolled:
    """Hold what clients saw of a rolling restart; `unterminated` are streams without an end."""

    requests: int = 0
    streams: int = 0
    failed: int = 0
    unterminated: int = 0
    failures: list[str] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    kills: list[Kills] = field(default_factory=list)
    balanced: Balanced = field(default_factory=Balanced)


async def rolling_restart(
    directory: Path, *, restarts: int, seed: int = 1, **settings: str
) -> Rolled:
    """Restart two servers `restarts` times each, in turn, by SIGTERM.

    `settings` are environment variables of both.
    """
    key = new_token(KEY_PREFIX).text
    env = {
        "SLUICE_INIT_TENANTS": "acme",
        "SLUICE_INIT_KEYS": key,
        "SLUICE_MAX_NUM_SEQS": str(MAX_NUM_SEQS),
        **settings,
    }
    replicas = [Replica(directory / name, free_port(), FLAGS, env) for name in ("a", "b")]
    result = Rolled()
    try:
        for replica in replicas:
            replica.start()
        for replica in replicas:
            await replica.wait_ready()
        async with Balancer([replica.port for replica in replicas]) as balancer:
            result.balanced = balancer.balanced
            await _restart_under_load(balancer, replicas, key, result, restarts, seed)
        for replica in replicas:
            replica.send(signal.SIGTERM)
        for replica in replicas:
            await replica.wait_ended()
    finally:
        for replica in replicas:
            replica.send(signal.SIGKILL)
    return result


async def _restart_under_load(
    balancer: Balancer,
    replicas: list[Replica],
    key: str,
    result: Rolled,
    restarts: int,
    seed: int,
) -> None:
    target = Target("127.0.0.1", balancer.port, key, MODEL)
    over = asyncio.Event()
    killers = [Killer(replica, seed=seed + i) for i, replica in enumerate(replicas)]
    result.kills = [killer.kills for killer in killers]
    async with asyncio.TaskGroup() as group:
        for number in range(CLIENTS):
            group.create_task(_be_client(target, random.Random(f"{seed}:{number}"), result, over))
        try:
            for _ in range(restarts):
                for replica, killer in zip(replicas, killers, strict=True):
                    await killer.hit(signal.SIGTERM)
                    while replica.port not in balancer.ready:
                        await asyncio.sleep(0.05)
                    # Load on both before the other goes.
                    await asyncio.sleep(0.5)
        finally:
            over.set()


async def _be_client(
    target: Target, draw: random.Random, result: Rolled, over: asyncio.Event
) -> None:
    while not over.is_set():
        stream = draw.random() < 0.75
        body = {
            "model": target.model,
            "prompt": [draw.randrange(512, 1000) for _ in range(draw.randrange(8, 64))],
            "max_tokens": draw.randrange(8, 160),
            "ignore_eos": True,
            "stream": stream,
        }
        started = time.perf_counter()
        result.requests += 1
        result.streams += stream
        try:
            answer = await _ask(target, json.dumps(body).encode())
        except (NoAnswer, BadAnswer, OSError, TimeoutError) as exc:
            result.unterminated += stream and isinstance(exc, BadAnswer)
            _fail(result, f"{type(exc).__name__}: {exc}")
            await asyncio.sleep(0.05)
            continue
        result.seconds.append(time.perf_counter() - started)
        result.statuses[str(answer.status)] += 1
        _check(answer, result, stream=stream)


async def _ask(target: Target, body: bytes) -> Answer:
    reader, writer = await asyncio.open_connection(target.host, target.port)
    try:
        writer.write(post(target, "/v1/completions", body))
        async with asyncio.timeout(60):
            return await read_answer(reader)
    finally:
        writer.transport.abort()


def _check(answer: Answer, result: Rolled, *, stream: bool) -> None:
    if answer.status != 200:
        _fail(result, f"{answer.status} {answer.body[:200]!r}")
    elif stream and not answer.body.endswith(b"data: [DONE]\n\n"):
        last = answer.body.rstrip().rpartition(b"\n\n")[2]
        # An error event is an end that a client understands, but it is no success.
        result.unterminated += b'"error"' not in last
        _fail(result, f"a stream ended with {last[:200]!r}")
    elif not stream and "choices" not in json.loads(answer.body):
        _fail(result, f"an answer without choices: {answer.body[:200]!r}")


def _fail(result: Rolled, what: str) -> None:
    result.failed += 1
    if len(result.failures) < _KEPT_FAILURES:
        result.failures.append(what)
