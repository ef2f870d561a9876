"""Batches submitted over HTTP while PostgreSQL is stopped at once, again and again.

What the server has acknowledged must be there in the end and complete, each of its lines in the
output or the error file once, and billed once. Most clients send an `Idempotency-Key` and try until
they are answered; the others send once, and what they are not told of is nobody's promise.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4

import asyncpg
import httpx

from gateway.domain.batch import ItemRun
from gateway.services.batches.worker_items import request_id_of
from tests.soak.fleet import MODEL, Fleet, running_fleet, until

_CLIENTS: Final = 8
_ONE_IN_UNKEYED: Final = 4
_RETRY_S: Final = 0.2
_PATIENCE_S: Final = 240.0
# Runs of one item: each that was given back is one.
_MAX_RUNS: Final = 100
_AWAY: Final = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError)


@dataclass
class Lost:
    """Hold what was seen. `batches` were acknowledged, `made` are in PostgreSQL."""

    stops: int = 0
    batches: int = 0
    made: int = 0
    items: int = 0
    sends: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
    two_ids_for_a_key: int = 0
    lost_batches: list[str] = field(default_factory=list)
    lost_items: int = 0
    failed_items: int = 0
    rows: int = 0
    unbilled_rows: int = 0
    unknown_rows: int = 0
    duplicate_rows: int = 0
    duplicate_results: int = 0
    away_s: float = 0.0
    submitted_s: float = 0.0
    ended_s: float = 0.0


@dataclass
class Submitted:
    """Hold an acknowledged batch."""

    id: str
    num_items: int


class Clients:
    """Submit batches, as many at a time as there are clients, each when it is told to."""

    def __init__(self, fleet: Fleet, num_items: int, result: Lost) -> None:
        self._num_items = num_items
        self._result = result
        self._http = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{fleet.replicas[0].port}/v1",
            headers={"authorization": f"Bearer {fleet.key}"},
            timeout=30,
            limits=httpx.Limits(keepalive_expiry=2.0),
        )
        self._together = asyncio.Semaphore(_CLIENTS)
        self.submitted: list[Submitted] = []

    async def close(self) -> None:
        await self._http.aclose()

    async def submit(self, number: int) -> None:
        """Submit one batch; one in four without a key, and then once."""
        async with self._together:
            file_id = (await self._until_answered("/files", **self._input()))["id"]
            body = {
                "input_file_id": file_id,
                "endpoint": "/v1/completions",
                "completion_window": "24h",
            }
            if number % _ONE_IN_UNKEYED == 0:
                made = await self._send("/batches", json=body)
                if made is not None:
                    self._acknowledged(made)
                return
            headers = {"idempotency-key": f"batch-{number}-{uuid4().hex}"}
            made = await self._until_answered("/batches", json=body, headers=headers)
            self._acknowledged(made)
            # Whoever asks again is told of the same one.
            again = await self._until_answered("/batches", json=body, headers=headers)
            self._result.two_ids_for_a_key += again["id"] != made["id"]

    async def show(self, batch: Submitted) -> dict[str, Any] | None:
        """Return a batch as the API shows it; None: it knows of none."""
        answer = await self._get(f"/batches/{batch.id}")
        return answer.json() if answer.status_code == 200 else None

    async def lines(self, file_id: str | None) -> list[dict[str, Any]]:
        """Download a file of a batch."""
        if file_id is None:
            return []
        answer = await self._get(f"/files/{file_id}/content")
        assert answer.status_code == 200, answer.text
        return [json.loads(line) for line in answer.content.splitlines()]

    async def _get(self, path: str) -> httpx.Response:
        """Read, as often as a tenant may."""
        while (answer := await self._http.get(path)).status_code == 429:
            await asyncio.sleep(_RETRY_S)
        return answer

    def _acknowledged(self, made: dict[str, Any]) -> None:
        self.submitted.append(Submitted(made["id"], self._num_items))

    def _input(self) -> dict[str, Any]:
        lines = [
            {
                "custom_id": f"r{number}",
                "method": "POST",
                "url": "/v1/completions",
                "body": {"model": MODEL, "prompt": f"question {number}", "max_tokens": 4},
            }
            for number in range(self._num_items)
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        return {"data": {"purpose": "batch"}, "files": {"file": ("input.jsonl", text)}}

    async def _until_answered(self, path: str, **asked: Any) -> dict[str, Any]:
        async with asyncio.timeout(_PATIENCE_S):
            while (made := await self._send(path, **asked)) is None:
                await asyncio.sleep(_RETRY_S)
        return made

    async def _send(self, path: str, **asked: Any) -> dict[str, Any] | None:
        """Send once; None where it was not acknowledged."""
        self._result.sends += 1
        try:
            answer = await self._http.post(path, **asked)
        except httpx.HTTPError as exc:
            self._note(f"{path} {type(exc).__name__}")
            return None
        self._note(f"{path} {answer.status_code}")
        assert answer.status_code == 200 or answer.status_code in (409, 429, 500, 503), answer.text
        return answer.json() if answer.status_code == 200 else None

    def _note(self, ending: str) -> None:
        self._result.statuses[ending] = self._result.statuses.get(ending, 0) + 1


async def lost_batches(
    directory: Path, *, batches: int, items: int, stops: int, seed: int = 1, **settings: str
) -> Lost:
    """Submit batches while PostgreSQL is stopped so often, wait for their ends, and compare."""
    result = Lost()
    async with running_fleet(directory, size=1, **settings) as fleet:
        clients = Clients(fleet, items, result)
        try:
            draw, began = random.Random(seed), time.monotonic()
            await _submit_beneath_stops(
                fleet, directory / "stores", clients, result, batches, stops, draw
            )
            result.submitted_s = time.monotonic() - began
            result.ended_s = await until(_all_ended(fleet), timeout_s=_PATIENCE_S, every_s=0.5)
            await _look(fleet, clients, result)
        finally:
            await clients.close()
    return result


async def _submit_beneath_stops(
    fleet: Fleet,
    stores: Path,
    clients: Clients,
    result: Lost,
    batches: int,
    stops: int,
    draw: random.Random,
) -> None:
    """Have a share of the batches come around each stop."""
    numbers = iter(range(batches))
    async with asyncio.TaskGroup() as group:
        for _ in range(stops):
            for number in islice(numbers, -(-batches // stops)):
                group.create_task(_later(draw.uniform(0, 2.0), clients, number))
            await asyncio.sleep(draw.uniform(0.2, 2.0))
            result.away_s += await stop_at_once(fleet, stores)
            result.stops += 1


async def _later(after_s: float, clients: Clients, number: int) -> None:
    await asyncio.sleep(after_s)
    await clients.submit(number)


async def stop_at_once(fleet: Fleet, stores: Path) -> float:
    """Do what `pg_ctl stop -m immediate` does; return after how long there was another."""
    pid_file = stores / "postgres" / "postmaster.pid"
    began = time.monotonic()
    os.kill(int(pid_file.read_text().split(maxsplit=1)[0]), signal.SIGQUIT)

    async def is_back() -> bool:
        with suppress(*_AWAY):
            await fleet.database.fetchval("SELECT 1", timeout=2)
            return time.monotonic() - began > 0.2
        return False

    await until(is_back, timeout_s=60)
    return time.monotonic() - began


def _all_ended(fleet: Fleet) -> Any:
    async def all_ended() -> bool:
        with suppress(*_AWAY):
            query = "SELECT count(*) FROM batches WHERE ended_at IS NULL"
            return not await fleet.database.fetchval(query)
        return False

    return all_ended


async def _look(fleet: Fleet, clients: Clients, result: Lost) -> None:
    """Read each batch as its client does, and the ledger itself."""
    result.batches = len(clients.submitted)
    for batch in clients.submitted:
        found = await clients.show(batch)
        if found is None or found["status"] != "completed":
            result.lost_batches.append(f"{batch.id}: {found and found['status']}")
            continue
        good = await clients.lines(found["output_file_id"])
        bad = await clients.lines(found["error_file_id"])
        names = Counter(line["custom_id"] for line in [*good, *bad])
        result.failed_items += len(bad)
        result.duplicate_results += names.total() - len(names)
        result.lost_items += len({f"r{n}" for n in range(batch.num_items)} - names.keys())
    rows = await fleet.database.fetch("SELECT id, num_items FROM batches")
    result.made, result.items = len(rows), sum(row["num_items"] for row in rows)
    await _compare(fleet, rows, result)


async def _compare(fleet: Fleet, batches: Sequence[Any], result: Lost) -> None:
    """Hold the ledger against the items of all batches."""
    items = {
        request_id_of(ItemRun(row["id"], line, run)): (row["id"], line)
        for row in batches
        for line in range(1, row["num_items"] + 1)
        for run in range(1, _MAX_RUNS)
    }
    bills = await fleet.database.fetch(
        "SELECT request_id, output_tokens FROM usage_events WHERE is_batch"
    )
    result.rows = len(bills)
    result.unbilled_rows = sum(not bill["output_tokens"] for bill in bills)
    result.unknown_rows = sum(bill["request_id"] not in items for bill in bills)
    billed: Counter[tuple[UUID, int] | None] = Counter(
        items.get(bill["request_id"]) for bill in bills if bill["output_tokens"]
    )
    billed.pop(None, None)
    result.duplicate_rows = billed.total() - len(billed)
    result.lost_items += max(0, result.items - len(billed) - result.failed_items)
