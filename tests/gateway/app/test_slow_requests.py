"""Six slow requests, each made slow on purpose in another way: its record names the cause.

A whole gateway with real stores, over a simulated engine whose steps take 15 ms; what is asked of
it goes the way of any request, and what became of it is read from the admin API.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import pytest
from starlette.types import ASGIApp, Message

from gateway.settings import Settings
from gateway.store.embedded import EmbeddedServers
from tests.gateway.api.real_gateway import RealGateway, real_gateway
from tests.gateway.conftest import Databases, owner_of

pytestmark = pytest.mark.anyio

SLOTS = 6


@dataclass
class Answer:
    """Hold what came of one request."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def id(self) -> str:
        return self.headers["x-request-id"]


@pytest.fixture(scope="module")
def url(databases: Databases) -> Iterator[str]:
    """Make a database that the tests of this module share."""
    with databases.fresh("migrated") as url:
        yield url


@pytest.fixture(scope="module")
async def real(
    url: str, servers: EmbeddedServers, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RealGateway]:
    """Serve with a few slots, to two tenants."""
    settings = Settings(
        data_dir=tmp_path_factory.mktemp("slow"),
        database_url=url,
        database_owner_url=owner_of(url),
        redis_url=servers.redis_url(),
        engine_profile="a100-llama-3-8b",
        max_num_seqs=SLOTS,
        prefix_caching=False,
        batch_worker=False,
        # How long one is held up is the machine's affair: each has its record, however long.
        trace_share=1.0,
    )
    async with real_gateway(settings) as running:
        yield running


@pytest.fixture
def key(real: RealGateway) -> str:
    assert real.gateway.first_start is not None
    return real.gateway.first_start.keys[0].token


async def ask(
    real: RealGateway,
    key: str,
    *,
    prompt: str = "hi",
    max_tokens: int = 4,
    read_s: float = 0.0,
    **more: Any,
) -> Answer:
    """Complete a prompt; the client takes `read_s` to read each message."""
    body = {
        "model": next(iter(real.gateway.models)).name,
        "prompt": prompt,
        "max_tokens": max_tokens,
    }
    raw = json.dumps(body | {"ignore_eos": True} | more).encode()
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/completions",
        "query_string": b"",
        "headers": [
            (b"authorization", f"Bearer {key}".encode()),
            (b"content-type", b"application/json"),
            (b"content-length", str(len(raw)).encode()),
        ],
        "client": ("127.0.0.1", 1),
    }
    answer, messages = Answer(), [{"type": "http.request", "body": raw}]

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await asyncio.Event().wait()
        raise AssertionError("the client stays")

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = {k.decode(): v.decode() for k, v in message["headers"]}
        else:
            answer.body += message.get("body", b"")
        await asyncio.sleep(read_s)

    app: ASGIApp | None = real.gateway.public
    assert app is not None
    await app(scope, receive, send)
    return answer


async def record_of(real: RealGateway, answer: Answer) -> dict[str, Any]:
    """Return a request's record, which comes within a second of its end."""
    async with asyncio.timeout(10):
        while True:
            found = await real.owner.get(f"/admin/v1/requests/{answer.id}")
            if found.status_code == 200:
                record: dict[str, Any] = found.json()
                return record
            await asyncio.sleep(0.05)


async def taken_in(real: RealGateway, number: int) -> None:
    """Wait until the scheduler has so many requests."""
    [model] = real.gateway.models
    async with asyncio.timeout(10):
        while (counts := model.service.snapshot()).queued + counts.running < number:
            await asyncio.sleep(0.005)


def seconds(record: dict[str, Any], cause: str) -> float:
    return sum(
        one["seconds"] for one in record["details"]["contributions"] if one["cause"] == cause
    )


def check_sum(record: dict[str, Any]) -> None:
    """Check that every second has a cause."""
    whole = sum(one["seconds"] for one in record["details"]["contributions"])
    assert whole == pytest.approx(record["duration_s"], abs=1e-3)


async def test_its_own_limit(real: RealGateway) -> None:
    """A tenant that may send one request a minute is refused the second, by that limit."""
    assert real.gateway.first_start is not None
    limited = real.gateway.first_start.keys[1]
    put = await real.owner.put("/admin/v1/quotas/tenant/globex", json={"rpm": 1})
    assert put.status_code == 200, put.text
    answers = [await ask(real, limited.token) for _ in range(2)]
    assert [answer.status for answer in answers] == [200, 429]
    record = await record_of(real, answers[1])
    assert record["cause"] == "own_limit"
    assert record["details"]["limit"] == "tenant.rpm"
    assert "tenant.rpm" in record["details"]["sentence"]


async def test_the_queue(real: RealGateway, key: str) -> None:
    """With every slot taken for most of a second, it waited for one."""
    hogs = [asyncio.create_task(ask(real, key, max_tokens=50)) for _ in range(SLOTS)]
    await taken_in(real, SLOTS)
    answer = await ask(real, key)
    record = await record_of(real, answer)
    await asyncio.gather(*hogs)
    assert record["cause"] == "queue", record
    assert "a slot" in record["details"]["sentence"]
    assert seconds(record, "queue") > 0.3
    check_sum(record)


async def test_a_long_prompt_ahead(real: RealGateway, key: str) -> None:
    """With slots free, prompts of thousands of tokens that came before filled the steps."""
    hogs = [asyncio.create_task(ask(real, key, prompt=f"{n} word" * 700)) for n in range(SLOTS - 1)]
    await taken_in(real, SLOTS - 1)
    answer = await ask(real, key)
    await asyncio.gather(*hogs)
    record = await record_of(real, answer)
    assert record["cause"] == "long_prompt", record
    check_sum(record)


async def test_a_preemption(real: RealGateway, key: str) -> None:
    """One of those that run in the flex tier was sent back for one of the default tier."""
    flex = [
        asyncio.create_task(ask(real, key, max_tokens=25, service_tier="flex"))
        for _ in range(SLOTS)
    ]
    await taken_in(real, SLOTS)
    await asyncio.sleep(0.1)
    urgent = [asyncio.create_task(ask(real, key, max_tokens=35)) for _ in range(SLOTS)]
    answers = await asyncio.gather(*flex)
    await asyncio.gather(*urgent)
    records = [await record_of(real, answer) for answer in answers]
    sent_back = [record for record in records if record["is_preempted"]]
    assert sent_back
    for record in sent_back:
        assert record["cause"] == "preempted", record
        assert "band" in record["details"]["sentence"]
        check_sum(record)


async def test_a_slow_reader(real: RealGateway, key: str) -> None:
    """It was computed in no time, and its client took longer to read it."""
    answer = await ask(real, key, stream=True, read_s=0.3)
    record = await record_of(real, answer)
    assert record["cause"] == "slow_reader", record
    assert seconds(record, "slow_reader") > 0.3
    check_sum(record)


async def test_a_store_that_is_away(real: RealGateway, url: str) -> None:
    """Its key was looked up in a database that did not answer for a while."""
    made = await real.owner.post("/admin/v1/keys", json={"tenant": "acme", "name": "fresh"})
    connection = await asyncpg.connect(owner_of(url))
    try:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("LOCK TABLE key_secrets IN ACCESS EXCLUSIVE MODE")
        asking = asyncio.create_task(ask(real, made.json()["key"]))
        await asyncio.sleep(0.7)
        await transaction.rollback()
    finally:
        await connection.close()
    record = await record_of(real, await asking)
    assert record["cause"] == "store", record
    assert seconds(record, "store") > 0.5
    check_sum(record)
