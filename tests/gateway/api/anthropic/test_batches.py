"""`/v1/messages/batches` over a gateway with a real store, its own worker running the items."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import text

from gateway.settings import Settings
from gateway.store import Store
from tests.gateway.api.openai.test_batches import Api, open_api

pytestmark = pytest.mark.anyio

PATH = "/v1/messages/batches"
GOOD: dict[str, Any] = {
    "model": "sim",
    "max_tokens": 3,
    "messages": [{"role": "user", "content": "hi"}],
}


@dataclass(slots=True)
class Batches:
    """Ask a gateway with a tenant's key in Anthropic's header."""

    api: Api

    async def ask(
        self, method: str, path: str = "", *, tenant: int = 0, status: int = 200, **more: Any
    ) -> Any:
        assert self.api.world.store.first_start is not None
        key = self.api.world.store.first_start.keys[tenant].token
        headers = {"x-api-key": key} | more.pop("headers", {})
        answer = await self.api.http.request(method, PATH + path, headers=headers, **more)
        assert answer.status_code == status, answer.text
        if status != 200:
            assert set(answer.json()) == {"type", "error", "request_id"}
        is_lines = answer.headers["content-type"] == "application/x-jsonl"
        return (
            [json.loads(line) for line in answer.text.splitlines()] if is_lines else answer.json()
        )

    async def make(self, *params: dict[str, Any], **more: Any) -> Any:
        requests = [{"custom_id": f"r{n}", "params": each} for n, each in enumerate(params)]
        return await self.ask("POST", json={"requests": requests}, **more)

    async def until(self, batch: Any, is_so: Any) -> Any:
        async with asyncio.timeout(60):
            while not is_so(batch := await self.ask("GET", f"/{batch['id']}")):
                await asyncio.sleep(0.05)
        return batch

    async def ended(self, batch: Any) -> Any:
        return await self.until(batch, lambda batch: batch["processing_status"] == "ended")


@pytest.fixture
async def idle(store: Store, settings: Settings) -> AsyncIterator[Batches]:
    """A gateway that runs nothing: the test does."""
    async with open_api(store, settings) as opened:
        yield Batches(opened)


@pytest.fixture
async def working(store: Store, settings: Settings) -> AsyncIterator[Batches]:
    """A gateway that runs what it is given."""
    async with open_api(store, settings, batch_worker=True) as opened:
        yield Batches(opened)


async def test_a_batch_is_run_read_and_deleted(working: Batches) -> None:
    """Each request has one result under its id, good or bad; after the delete nothing is left."""
    batch = await working.make(GOOD, GOOD | {"temperature": 9}, GOOD | {"stop_sequences": ["x"]})
    assert batch["id"].startswith("msgbatch_")
    assert batch | {"id": "", "created_at": "", "expires_at": ""} == {
        "id": "",
        "type": "message_batch",
        "processing_status": "in_progress",
        "request_counts": {
            "processing": 3,
            "succeeded": 0,
            "errored": 0,
            "canceled": 0,
            "expired": 0,
        },
        "created_at": "",
        "expires_at": "",
        "ended_at": None,
        "cancel_initiated_at": None,
        "archived_at": None,
        "results_url": None,
    }
    await working.ask("GET", f"/{batch['id']}/results", status=409)
    await working.ask("DELETE", f"/{batch['id']}", status=409)
    batch = await working.ended(batch)
    counts = batch["request_counts"]
    assert (counts["processing"], counts["succeeded"], counts["errored"]) == (0, 2, 1)
    assert batch["results_url"] == f"{PATH}/{batch['id']}/results"
    results = await working.ask("GET", f"/{batch['id']}/results")
    by_id = {each["custom_id"]: each["result"] for each in results}
    assert sorted(by_id) == ["r0", "r1", "r2"]
    message = by_id["r0"]["message"]
    assert (by_id["r0"]["type"], message["type"]) == ("succeeded", "message")
    assert (message["usage"]["output_tokens"], message["usage"]["service_tier"]) == (3, "batch")
    bad = by_id["r1"]
    assert (bad["type"], bad["error"]["type"]) == ("errored", "error")
    assert bad["error"]["error"]["type"] == "invalid_request_error"
    assert "temperature" in bad["error"]["error"]["message"]
    deleted = await working.ask("DELETE", f"/{batch['id']}")
    assert deleted == {"id": batch["id"], "type": "message_batch_deleted"}
    await working.ask("GET", f"/{batch['id']}", status=404)
    assert not (await working.api.client().files.list()).data

    # What OpenAI's client makes of a file is read here too, and its file is left.
    line = {"custom_id": "ä b", "method": "POST", "url": "/v1/messages", "body": GOOD}
    file_id = await working.api.upload(json.dumps(line).encode())
    made = await working.api.client().batches.create(
        input_file_id=file_id, endpoint="/v1/messages", completion_window="24h"
    )
    name = made.id.replace("batch_", "msgbatch_")
    batch = await working.ended({"id": name})
    [result] = await working.ask("GET", f"/{batch['id']}/results")
    assert (result["custom_id"], result["result"]["type"]) == ("ä b", "succeeded")
    await working.ask("DELETE", f"/{batch['id']}")
    assert [file.id for file in (await working.api.client().files.list()).data] == [file_id]


async def test_what_is_left_of_a_cancelled_batch_is_mixed(idle: Batches) -> None:
    """What was run is there, what was not is `canceled`, and together they are all of it."""
    batch = await idle.make(*[GOOD] * 4)

    async def is_begun() -> None:
        async with asyncio.timeout(60):
            while not (begun := await idle.api.world.store.batches.open_batches()):
                await asyncio.sleep(0.05)
        await idle.api.world.run(begun[0], 1)

    await is_begun()
    cancelled = await idle.ask("POST", f"/{batch['id']}/cancel")
    assert cancelled["processing_status"] == "canceling"
    assert cancelled["cancel_initiated_at"] is not None
    batch = await idle.ended(batch)
    counts = batch["request_counts"]
    assert (counts["succeeded"], counts["canceled"], counts["processing"]) == (1, 3, 0)

    # One that was cancelled, expired or failed before its first item says so for each request.
    world = idle.api.world
    made = {fate: await idle.make(GOOD, GOOD) for fate in ("canceled", "expired", "errored")}
    for fate, state in (("canceled", "cancelled"), ("expired", "expired"), ("errored", "failed")):
        async with world.store.database.platform() as connection:
            hexed = made[fate]["id"].removeprefix("msgbatch_")
            await connection.execute(text(f"DELETE FROM batch_items WHERE batch_id = '{hexed}'"))
            await connection.execute(
                text(
                    f"UPDATE batches SET state = '{state}', num_items = 0, ended_at = now() "
                    f"WHERE id = '{hexed}'"
                )
            )
        batch = await idle.ask("GET", f"/{made[fate]['id']}")
        assert batch["request_counts"][fate] == 2
        results = await idle.ask("GET", f"/{made[fate]['id']}/results")
        assert [each["custom_id"] for each in results] == ["r0", "r1"]
        assert {each["result"]["type"] for each in results} == {fate}


async def test_lists_go_both_ways_and_hold_messages_alone(
    idle: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After one and before one, newest first; other tenants' and other endpoints' are not there."""
    ids = [(await idle.make(GOOD))["id"] for _ in range(4)][::-1]
    await idle.make(GOOD, tenant=1)
    data = b'{"custom_id":"a","method":"POST","url":"/v1/completions","body":{}}'
    await idle.api.client().batches.create(
        input_file_id=await idle.api.upload(data),
        endpoint="/v1/completions",
        completion_window="24h",
    )

    async def listed(**params: Any) -> tuple[list[str], bool]:
        page = await idle.ask("GET", params=params)
        found = [batch["id"] for batch in page["data"]]
        assert (page["first_id"], page["last_id"]) == (found[0], found[-1])
        return found, page["has_more"]

    assert await listed() == (ids, False)
    assert await listed(limit=2) == (ids[:2], True)
    assert await listed(limit=2, after_id=ids[1]) == (ids[2:], False)
    assert await listed(limit=2, before_id=ids[3]) == (ids[1:3], True)
    assert await listed(limit=2, before_id=ids[2]) == (ids[:2], False)
    # A page has no more than are read in a moment, whatever is asked for; there are more then.
    monkeypatch.setattr("gateway.api.anthropic.batches.PAGE_BATCHES", 3)
    assert await listed(limit=1000) == (ids[:3], True)
    assert await listed(limit=1000, before_id=ids[3]) == (ids[:3], False)
    await idle.ask("GET", params={"limit": 0}, status=400)
    await idle.ask("GET", params={"after_id": "msgbatch_x"}, status=404)
    for method, path in (("GET", ""), ("GET", "/results"), ("POST", "/cancel"), ("DELETE", "")):
        await idle.ask(method, f"/{ids[0]}{path}", tenant=1, status=404)


async def test_who_names_a_batch_that_is_not_there_is_told_where(idle: Batches) -> None:
    """A refusal has the name by which the client sent the id."""
    gone = f"msgbatch_{'0' * 32}"
    for named in ("after_id", "before_id"):
        error = await idle.ask("GET", params={named: gone}, status=404)
        assert error["error"]["message"] == f"{named}: There is no such batch."
    for method, path in (("GET", ""), ("GET", "/results"), ("POST", "/cancel"), ("DELETE", "")):
        error = await idle.ask(method, f"/{gone}{path}", status=404)
        assert error["error"]["message"] == "message_batch_id: There is no such batch."


async def test_a_body_makes_one_batch_or_none(idle: Batches) -> None:
    """Refused, nothing is left of it; sent again under its key, it is the same batch."""
    bad = {"requests": [{"custom_id": "r0", "params": GOOD}, {"custom_id": "r0", "params": GOOD}]}
    error = await idle.ask("POST", json=bad, status=400)
    assert "requests[1].custom_id" in error["error"]["message"]
    await idle.ask("POST", json={"requests": []}, status=400)
    await idle.ask("POST", content=b"[" * 100_000, status=400)
    await idle.make(GOOD | {"model": "no"}, status=404)
    too_large = b'{"requests":[' + b" " * (4 << 20) + b"]}"
    error = await idle.ask("POST", content=too_large, status=413)
    assert error["error"]["type"] == "request_too_large"
    assert (await idle.ask("GET"))["data"] == []
    assert not (await idle.api.client().files.list()).data

    key = {"headers": {"idempotency-key": "once"}}
    first, again = await idle.make(GOOD, **key), await idle.make(GOOD, **key)
    assert first == again
    assert len((await idle.ask("GET"))["data"]) == 1
    assert len((await idle.api.client().files.list()).data) == 1

    # Pretty JSON is one line a request.
    pretty = json.dumps({"requests": [{"custom_id": "a", "params": GOOD}]}, indent=2)
    await idle.ask("POST", content=pretty.replace("\n", "\r\n").encode())
    async with asyncio.timeout(60):
        while len(await idle.api.world.store.batches.open_batches()) < 2:
            await asyncio.sleep(0.05)
