"""Answers of a form, asked of a server over HTTP: of random schemas, and of many that differ."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation, localcontext
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx
import jsonschema
from jsonschema.validators import validator_for

from tests.live_server import Server

_TIMEOUT_S: Final = 120.0
_TOGETHER: Final = 4
# More than any of them takes, blanks and all.
_ENOUGH_TOKENS: Final = 1500
_IMPOSSIBLE: Final = re.compile("no value")
_KEYWORD: Final = re.compile(r"[$\w]+")
_CHILD: Final = b"gateway.services.constraints.child"

Body = dict[str, Any]
T = TypeVar("T")


@dataclass
class Fates:
    """Say what became of schemas: how each ended, which answers were not of theirs, and what was
    refused: of how many no value is, by which keywords others, and what named none."""

    ends: Counter[str] = field(default_factory=Counter)
    invalid: list[Body] = field(default_factory=list)
    num_impossible: int = 0
    named: Counter[str] = field(default_factory=Counter)
    unnamed: list[str] = field(default_factory=list)

    def refuse(self, schema: Body, message: str) -> None:
        """Note a refusal by what it says."""
        self.ends["400"] += 1
        if _IMPOSSIBLE.search(message):
            self.num_impossible += 1
        elif found := [name for name in _KEYWORD.findall(message) if name in _names_in(schema)]:
            self.named[found[0]] += 1
        else:
            self.unnamed.append(message)


async def random_forms(
    server: Server, schemas: Iterable[Body], *, draft: Any = jsonschema.Draft202012Validator
) -> Fates:
    """Ask for an answer of each of some schemas, which are of `draft` unless they say another, and
    validate it."""
    fates = Fates()

    async def ask(client: httpx.AsyncClient, numbered: tuple[int, Body]) -> None:
        seed, schema = numbered
        asked = {"guided_json": schema, "seed": seed, "temperature": 0.7}
        answer = await client.post("/completions", json=_body(server, _ENOUGH_TOKENS) | asked)
        document = answer.json()
        if answer.status_code == 400:
            fates.refuse(schema, document["error"]["message"])
            return
        if answer.status_code != 200:
            fates.ends[str(answer.status_code)] += 1
            return
        [choice] = document["choices"]
        fates.ends[choice["finish_reason"]] += 1
        if choice["finish_reason"] == "stop" and not _is_of(choice["text"], schema, draft):
            fates.invalid.append({"schema": schema, "text": choice["text"]})

    await _each(server, enumerate(schemas), ask)
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


def _names_in(schema: Any) -> set[str]:
    """Collect the names of members at any depth."""
    if isinstance(schema, list):
        return set().union(*map(_names_in, schema))
    if not isinstance(schema, dict):
        return set()
    return set(schema).union(*map(_names_in, schema.values()))


def _exact(number: str) -> Decimal | float:
    try:
        return Decimal(number)
    except InvalidOperation:
        # An exponent of twenty digits.
        return float(number)


def _is_of(text: str, schema: Body, default: Any) -> bool:
    """Validate by the schema's own draft, in decimals: a tenth is not what doubles take it for."""
    try:
        value = json.loads(text, parse_float=_exact)
    except ValueError:
        return False
    exact = json.loads(json.dumps(schema), parse_float=Decimal)
    with localcontext(prec=1000):
        return bool(validator_for(exact, default)(exact).is_valid(value))


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
