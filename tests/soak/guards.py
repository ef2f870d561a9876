"""Fuzz a server while a victim asks it the same greedy question again and again.

Bad input may cost its sender alone: the engine lives, no answer is 500 or more, and the victim,
another tenant whose rows are computed in the same steps, gets the text that it gets alone. The
scheduler's own state says in how many samples rows of both tenants were running.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from tests.faults.cases import Target, post
from tests.faults.fuzzer import Tally, fuzz
from tests.faults.wire import BadAnswer, NoAnswer, read_answer
from tests.live_server import Server

VICTIMS: Final = 2
VICTIM_TOKENS: Final = 24
_QUESTION: Final = "How do I create a key?"
_SAMPLE_S: Final = 0.1


@dataclass
class Fuzzed:
    """Hold what a fuzzed server showed.

    `wrong` are the victim's answers that were not `expected`, `deaths` how often readiness was
    lost or the process was gone, `samples` and `shared_samples` how often the scheduler was
    looked at, and how often it then ran rows of the victim beside others.
    """

    expected: str
    tally: Tally = field(default_factory=Tally)
    victim_answers: int = 0
    wrong: list[str] = field(default_factory=list)
    deaths: int = 0
    samples: int = 0
    shared_samples: int = 0
    rss_mib: list[float] = field(default_factory=list)


async def fuzz_beside_victim(
    server: Server, *, count: int, seed: int, connections: int = 24
) -> Fuzzed:
    """Fuzz as the first tenant while the second is the victim; the server is the demo's."""
    attacker, victim = (_target(server, entry["key"]) for entry in server.banner["keys"][:2])
    result = Fuzzed(await _ask_alone(victim))
    async with _until_left(
        *(_be_victim(victim, result) for _ in range(VICTIMS)), _watch(server, result)
    ):
        result.tally = await fuzz(attacker, seed=seed, count=count, connections=connections)
        # One more look, so that a death by the last case is seen.
        await asyncio.sleep(3 * _SAMPLE_S)
    return result


@contextlib.asynccontextmanager
async def _until_left(*coroutines: Any) -> AsyncIterator[None]:
    """Run coroutines in the background, and end them on leaving; their failures are raised."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    for end in ends:
        if isinstance(end, Exception):
            raise end


def _target(server: Server, key: str) -> Target:
    url = urlsplit(server.api)
    assert url.hostname is not None
    assert url.port is not None
    return Target(url.hostname, url.port, key, server.banner["model"])


async def _be_victim(target: Target, result: Fuzzed) -> None:
    while True:
        try:
            text = await _ask(target)
        except (NoAnswer, BadAnswer, OSError, TimeoutError) as exc:
            text = f"{type(exc).__name__}: {exc}"
            await asyncio.sleep(_SAMPLE_S)
        result.victim_answers += 1
        if text != result.expected:
            result.wrong.append(text)


async def _ask_alone(target: Target) -> str:
    text = await _ask(target)
    assert text.startswith("200 "), text
    return text


async def _ask(target: Target) -> str:
    """Ask greedily on a fresh connection; return the status and all that a batch may change."""
    body = {
        "model": target.model,
        "messages": [{"role": "user", "content": _QUESTION}],
        "max_tokens": VICTIM_TOKENS,
        "temperature": 0,
    }
    reader, writer = await asyncio.open_connection(target.host, target.port)
    try:
        data = json.dumps(body).encode()
        writer.write(post(target, "/v1/chat/completions", data, close=True))
        async with asyncio.timeout(60):
            answer = await read_answer(reader)
    finally:
        writer.transport.abort()
    if answer.status != 200:
        return f"{answer.status} {answer.body.decode(errors='replace')}"
    document = json.loads(answer.body)
    [choice] = document["choices"]
    counts = [document["usage"][f"{kind}_tokens"] for kind in ("prompt", "completion")]
    return f"200 {choice['message']['content']!r} {choice['finish_reason']} {counts}"


async def _watch(server: Server, result: Fuzzed) -> None:
    base = server.api.removesuffix("/v1")
    headers = {"authorization": f"Bearer {server.banner['admin_token']}"}
    ready = True
    async with httpx.AsyncClient(timeout=30) as client:
        while True:
            was_ready, ready = ready, await _is_ready(client, server, base)
            result.deaths += was_ready and not ready
            if ready:
                url = f"{server.banner['admin']}/admin/v1/scheduler"
                view = (await client.get(url, headers=headers)).raise_for_status().json()
                result.samples += 1
                result.shared_samples += _is_shared(view)
                result.rss_mib.append(process_rss_mib(server.process.pid))
            await asyncio.sleep(_SAMPLE_S)


async def _is_ready(client: httpx.AsyncClient, server: Server, base: str) -> bool:
    if server.process.poll() is not None:
        return False
    try:
        return (await client.get(f"{base}/readyz")).status_code == 200
    except httpx.HTTPError:
        return False


def _is_shared(view: dict[str, Any]) -> bool:
    tenants = [t for band in view["data"][0]["state"]["bands"] for t in band["tenants"]]
    running = {t["tenant"] for t in tenants if t["running"] > 0}
    return len(running) > 1


def process_rss_mib(pid: int) -> float:
    """Return a process's resident memory."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
