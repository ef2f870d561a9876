"""Clients that ask for much and read nothing, beside a key that is new to its gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from uuid import uuid4

import httpx
import pytest
from sqlalchemy import text
from starlette.types import ASGIApp, Message

from gateway.domain.admin import AdminRole
from gateway.settings import Settings
from gateway.store.database import Database
from gateway.store.ledger import SqlLedger
from tests.gateway.api.real_gateway import RealGateway, real_gateway
from tests.gateway.usage_rows import usage_row

pytestmark = pytest.mark.anyio

NUM_READERS = 15
# Far below what the server waits for a connection, far above what it takes with one.
SOON_S = 2.0
EXPORT = "/admin/v1/usage"


@pytest.fixture
async def real(settings: Settings, database_url: str) -> AsyncIterator[RealGateway]:
    """Run a gateway whose ledger has enough rows for an export of several pieces."""
    async with real_gateway(settings) as running:
        assert running.gateway.first_start is not None
        acme = running.gateway.first_start.keys[0].key
        database = Database(database_url)
        async with database.platform() as connection:
            organisation = await connection.scalar(text("SELECT id FROM organisations"))
        row = usage_row(
            at=datetime.now(UTC),
            organisation_id=organisation,
            tenant_id=acme.tenant_id,
            key_id=acme.id,
        )
        rows = [replace(row, request_id=uuid4(), model=f"m{n:0200}") for n in range(1500)]
        await SqlLedger(database).insert(rows)
        await database.close()
        yield running


async def test_readers_who_stand_still_leave_new_keys_their_connections(real: RealGateway) -> None:
    """Fifteen exports that nobody reads, and a key that was never seen here is let in at once."""
    token = await real.token(AdminRole.TENANT_OWNER, "acme")
    key = await _new_key(real, "globex")
    async with _idle_readers(real.gateway.admin, token) as answers:
        async with asyncio.timeout(SOON_S):
            assert await _models(real.gateway.public, key) == 200
        assert len(answers) == NUM_READERS
        assert answers.count(200) == 2
        assert answers.count(429) == NUM_READERS - 2


async def test_an_export_that_is_not_read_holds_no_transaction(
    real: RealGateway, database_url: str
) -> None:
    """What is sent comes from a file: nothing of the store waits for whoever reads it."""
    database = Database(database_url)
    assert real.gateway.first_start is not None
    async with _idle_readers(real.gateway.admin, real.gateway.first_start.admin_token, 2) as seen:
        assert seen == [200, 200]
        query = text(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND state = 'idle in transaction'"
        )
        async with database.as_itself() as connection:
            assert await connection.scalar(query) == 0
    await database.close()


async def test_another_tenant_exports_beside_one_whose_readers_stand_still(
    real: RealGateway,
) -> None:
    """A tenant's exports are bounded apart from those of others, and from its own sums, and say
    when to come back.
    """
    token = await real.token(AdminRole.TENANT_OWNER, "acme")
    other = await real.token(AdminRole.TENANT_OWNER, "globex")
    async with _idle_readers(real.gateway.admin, token, 2):
        refused = await real.admin(token).get(EXPORT, params={"format": "csv"})
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "10")
        assert refused.json()["error"]["code"] == "too_many_exports"
        async with asyncio.timeout(SOON_S):
            answer = await real.admin(other).get(EXPORT, params={"format": "csv"})
            summed = await real.admin(token).get(EXPORT, params={"group_by": "tier"})
        assert (answer.status_code, summed.status_code) == (200, 200)
    again = await real.admin(token).get(EXPORT, params={"format": "csv"})
    assert again.status_code == 200
    assert again.text.count("\r\n") == 1501


async def test_reads_of_a_tenant_have_a_rate(settings: Settings) -> None:
    """Models, usage and the admin API share one; another tenant's, and inference, do not."""
    few = settings.model_copy(update={"read_rpm": 25})
    async with real_gateway(few) as real:
        token = await real.token(AdminRole.TENANT_VIEWER, "acme")
        acme, globex = [await _new_key(real, name) for name in ("acme", "globex")]
        public = real.gateway.public
        assert [await _get(public, "/v1/usage", acme) for _ in range(2)] == [200, 200]
        assert [await _models(public, acme) for _ in range(4)] == [200] * 4
        keys = [await real.admin(token).get("/admin/v1/keys") for _ in range(2)]
        assert [answer.status_code for answer in keys] == [200, 429]
        assert int(keys[1].headers["retry-after"]) in (2, 3)
        assert await _models(public, acme) == 429
        assert await _get(public, "/v1/usage", acme) == 429
        assert await _models(public, globex) == 200
        body = {"model": "sluice-demo", "prompt": "a", "max_tokens": 1}
        async with _client(public, acme) as client:
            assert (await client.post("/v1/completions", json=body)).status_code == 200


@asynccontextmanager
async def _idle_readers(
    app: ASGIApp, token: str, num_readers: int = NUM_READERS
) -> AsyncIterator[list[int]]:
    """Hold exports whose clients take the head of the answer and nothing of its body."""
    answers: list[int] = []

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            answers.append(message["status"])
        elif answers[-1] == 200:
            await asyncio.Event().wait()

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    scope = {
        "type": "http",
        "method": "GET",
        "path": EXPORT,
        "query_string": b"format=csv",
        "headers": [(b"authorization", f"Bearer {token}".encode())],
        "client": ("127.0.0.1", 1),
        "state": {},
    }
    readers = [
        asyncio.create_task(app({**scope, "state": {}}, receive, send)) for _ in range(num_readers)
    ]
    try:
        async with asyncio.timeout(SOON_S + 8):
            while len(answers) < num_readers:
                await asyncio.sleep(0.01)
        yield answers
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


async def _new_key(real: RealGateway, tenant: str) -> str:
    made = await real.owner.post("/admin/v1/keys", json={"tenant": tenant})
    return str(made.json()["key"])


async def _models(app: ASGIApp, key: str) -> int:
    return await _get(app, "/v1/models", key)


async def _get(app: ASGIApp, path: str, key: str) -> int:
    async with _client(app, key) as client:
        return (await client.get(path)).status_code


def _client(app: ASGIApp, key: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app, raise_app_exceptions=False),
        base_url="http://test",
        headers={"authorization": f"Bearer {key}"},
    )
