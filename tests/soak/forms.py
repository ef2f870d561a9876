"""Answers of a form, asked of a server over HTTP: of random schemas, and of many that differ."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx
import jsonschema

from tests.gateway.api.openai.random_schemas import draw_schemas
from tests.live_server import Server

_TIMEOUT_S: Final = 120.0
_TOGETHER: Final = 4
# More than any of them takes, blanks and all.
_ENOUGH_TOKENS: Final = 1500
# What of the schemas that are drawn is not supported.
_NAMED: Final = re.compile('"not"|"uniqueItems"')
_CHILD: Final = b"gateway.services.constraints.child"

Body = dict[str, Any]
T = TypeVar("T")


@dataclass
class Fates:
    """Say what became of schemas: how each ended, which answers were not of theirs, and which
    refusals named no keyword."""

    ends: Counter[str] = field(default_factory=Counter)
    invalid: list[Body] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)


async def random_forms(server: Server, number: int) -> Fates:
    """Ask for an answer of each of so many schemas, and validate it."""
    fates = Fates()

    async def ask(client: httpx.AsyncClient, numbered: tuple[int, Body]) -> None:
        seed, schema = numbered
        asked = {"guided_json": schema, "seed": seed, "temperature": 0.7}
        answer = await client.post("/completions", json=_body(server, _ENOUGH_TOKENS) | asked)
        document = answer.json()
        if answer.status_code != 200:
            message = document["error"]["message"]
            named = _NAMED.search(message)
            fates.ends[f"{answer.status_code} {named[0] if named else ''}".strip()] += 1
            if named is None:
                fates.unnamed.append(message)
            return
        [choice] = document["choices"]
        fates.ends[choice["finish_reason"]] += 1
        if choice["finish_reason"] == "stop" and not _is_of(choice["text"], schema):
            fates.invalid.append({"schema": schema, "text": choice["text"]})

    await _each(server, enumerate(draw_schemas(number)), ask)
    return fates


async def unique_forms(
    server: Server, number: int, *, looks: int
) -> tuple[Counter[int], list[float]]:
    """Ask for answers of so many schemas of which no two are alike.

    Returns: how often each status came, and the memory of the server in MiB, of which the processes
    that compile are a part, looked at `looks` times on the way.
    """
    statuses: Counter[int] = Counter()
    memory_mib: list[float] = []
    every = max(1, number // looks)

    async def ask(client: httpx.AsyncClient, nth: int) -> None:
        names = [f"name_{nth}_{index}" for index in range(nth % 7 + 1)]
        schema = {
            "type": "object",
            "properties": {name: {"type": "string", "maxLength": 9 + nth % 50} for name in names},
            "required": names[:1],
            "additionalProperties": False,
        }
        asked = _body(server, 2) | {"guided_json": schema}
        statuses[(await client.post("/completions", json=asked)).status_code] += 1
        if (nth + 1) % every == 0:
            memory_mib.append(_memory_mib(server.process.pid))

    await _each(server, range(number), ask)
    return statuses, memory_mib


@asynccontextmanager
async def client_of(server: Server, tenant: str = "acme") -> AsyncIterator[httpx.AsyncClient]:
    """Be a client of a tenant."""
    [key] = [entry["key"] for entry in server.banner["keys"] if entry["tenant"] == tenant]
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(
        base_url=server.api, headers=headers, timeout=_TIMEOUT_S
    ) as client:
        yield client


def _body(server: Server, max_tokens: int) -> Body:
    return {"model": server.banner["model"], "prompt": "The scheduler", "max_tokens": max_tokens}


async def _each(
    server: Server, items: Iterable[T], ask: Callable[[httpx.AsyncClient, T], Awaitable[None]]
) -> None:
    """Ask for each, some at a time."""
    waiting = iter(items)

    async def go_on(client: httpx.AsyncClient) -> None:
        for item in waiting:
            await ask(client, item)

    async with client_of(server) as client, asyncio.TaskGroup() as group:
        for _ in range(_TOGETHER):
            group.create_task(go_on(client))


def _is_of(text: str, schema: Body) -> bool:
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


def _memory_mib(pid: int) -> float:
    """Add up what a server and its processes that compile hold."""
    total = _rss_mib(Path(f"/proc/{pid}"))
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in tasks.read_text().split():
            place = Path("/proc") / child
            if _CHILD in (place / "cmdline").read_bytes():
                total += _rss_mib(place)
    return total


def _rss_mib(place: Path) -> float:
    found = re.search(r"VmRSS:\s+(\d+) kB", (place / "status").read_text())
    assert found is not None
    return int(found[1]) / 1024
