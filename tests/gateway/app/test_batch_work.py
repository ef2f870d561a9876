"""Items of batches on a whole gateway: real stores, a simulated engine, requests beside them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from sqlalchemy import text

from gateway.app.gateway import Gateway, open_gateway
from gateway.domain import ApiKey
from gateway.domain.batch import Batch, BatchDraft, PausedFor
from gateway.domain.usage import Outcome
from gateway.ports import FileStorage
from gateway.settings import Settings
from gateway.store.batches import SqlBatches
from gateway.store.database import Database
from gateway.store.storage_place import open_file_storage
from tests.gateway.submitted import COMPLETIONS, ledger_of, over, results_of, submit

pytestmark = pytest.mark.anyio

MODEL = "sluice-demo"
SLOW = "a100-llama-3-8b"


@dataclass
class Served:
    """Hold a running gateway, and clients of it."""

    gateway: Gateway
    storage: FileStorage
    public: httpx.AsyncClient
    admin: httpx.AsyncClient

    def key(self, tenant: int = 0) -> ApiKey:
        assert self.gateway.first_start is not None
        return self.gateway.first_start.keys[tenant].key

    async def price(self) -> None:
        """Have a million tokens cost 1 USD in, 4 USD out."""
        price = {"input_usd_per_mtok": "1", "output_usd_per_mtok": "4"}
        made = await self.admin.post("/admin/v1/prices", json={"model": MODEL, **price})
        assert made.status_code == 201, made.text


@asynccontextmanager
async def served(settings: Settings, **changes: object) -> AsyncIterator[Served]:
    """Open a gateway."""
    changed = {"engine": "simulated", "quota_build_s": 0.0, **changes}
    alone = settings.model_copy(update=changed)
    async with open_gateway(alone) as gateway:
        first = gateway.first_start
        assert first is not None
        storage = open_file_storage(alone.file_storage, alone.data_dir)
        public = _client(gateway.public, first.keys[0].token)
        admin = _client(gateway.admin, first.admin_token)
        yield Served(gateway, storage, public, admin)
        storage.close()


def _client(app: object, token: str) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
    headers = {"authorization": f"Bearer {token}"}
    return httpx.AsyncClient(transport=transport, base_url="http://sluice", headers=headers)


def body_of(nth: int, **more: object) -> dict[str, object]:
    return {"model": MODEL, "prompt": f"Question {nth}", "max_tokens": 8, "temperature": 0, **more}


async def paused(database: Database, draft: BatchDraft) -> Batch:
    """Wait until a batch waits for something, with nothing that runs, and return it."""
    async with asyncio.timeout(60):
        while True:
            batch = await SqlBatches(database).get(draft.tenant_id, draft.id)
            assert batch is not None
            states = {state for state, _ in await attempts_of(database, draft)}
            if batch.paused_for is not None and "running" not in states:
                return batch
            await asyncio.sleep(0.05)


async def attempts_of(database: Database, draft: BatchDraft) -> set[tuple[str, int]]:
    """Return the states of a batch's items, with how often they were tried."""
    query = text("SELECT DISTINCT state, num_attempts FROM batch_items WHERE batch_id = :id")
    async with database.platform() as connection:
        found = await connection.execute(query, {"id": draft.id})
        return {(row.state, row.num_attempts) for row in found}


async def test_a_batch_runs_beside_requests_at_half_the_price(
    settings: Settings, database: Database
) -> None:
    """Each item is answered as its request would be, has one row of the ledger, and costs half."""
    # On the demo model: a simulated engine draws tokens by the request's name.
    async with served(settings, engine=settings.engine) as sluice:
        await sluice.price()
        bodies = [body_of(nth) for nth in range(20)]
        draft = await submit(database, sluice.storage, sluice.key(), bodies)
        asked = [sluice.public.post(COMPLETIONS, json=body) for body in bodies]
        answers = [answer.json() for answer in await asyncio.gather(*asked)]
        batch = await over(database, draft, 20)
        lines = await results_of(database, draft)
    assert (batch.num_done, batch.num_failed) == (20, 0)
    assert [line["custom_id"] for line in lines] == [f"id-{nth}" for nth in range(1, 21)]
    assert {line["response"]["status_code"] for line in lines} == {200}
    texts = [line["response"]["body"]["choices"] for line in lines]
    assert texts == [answer["choices"] for answer in answers]
    rows = await ledger_of(database, sluice.key())
    items, requests = ([row for row in rows if row.is_batch is kind] for kind in (True, False))
    assert len(items) == len(requests) == 20
    assert {row.outcome for row in items} == {Outcome.COMPLETED}
    assert sum(row.nano_usd for row in items) * 2 == sum(row.nano_usd for row in requests) > 0
    assert batch.output_tokens == sum(row.output_tokens for row in items)


async def test_vectors_are_made_online_and_in_batches(
    settings: Settings, database: Database
) -> None:
    """An item has the vectors of its request at half the price of its input, and no output; one
    that asks the wrong model is refused; metrics tell of the operation."""
    path, name = "/v1/embeddings", "sluice-demo-embedding"
    bodies = [{"model": name, "input": [f"Question {nth}", "Sluice"]} for nth in range(3)]
    bodies.append({"model": MODEL, "input": "a"})
    async with served(settings, embedding_model=Path("demo")) as sluice:
        price = {"model": name, "input_usd_per_mtok": "1", "output_usd_per_mtok": "4"}
        assert (await sluice.admin.post("/admin/v1/prices", json=price)).status_code == 201
        listed = (await sluice.public.get("/v1/models")).json()["data"]
        draft = await submit(database, sluice.storage, sluice.key(), bodies, endpoint=path)
        asked = [sluice.public.post(path, json=body) for body in bodies]
        answers = [answer.json() for answer in await asyncio.gather(*asked)]
        batch = await over(database, draft, 4)
        lines = await results_of(database, draft)
        metrics = (await sluice.admin.get("/metrics")).text
        described = (await sluice.public.get("/openapi.json")).json()
    assert [card["id"] for card in listed] == [MODEL, name]
    assert (batch.num_done, batch.num_failed, batch.output_tokens) == (3, 1, 0)
    assert [line["response"]["status_code"] for line in lines] == [200, 200, 200, 400]
    for line, answer in zip(lines[:3], answers[:3], strict=True):
        ours, theirs = line["response"]["body"], answer
        assert ours["usage"] == theirs["usage"]
        for one, other in zip(ours["data"], theirs["data"], strict=True):
            assert one["embedding"] == pytest.approx(other["embedding"], abs=2e-6)
    rows = await ledger_of(database, sluice.key())
    items, requests = ([row for row in rows if row.is_batch is kind] for kind in (True, False))
    assert sum(row.nano_usd for row in items) * 2 == sum(row.nano_usd for row in requests) > 0
    assert sum(row.input_tokens for row in items) == sum(row.input_tokens for row in requests) > 0
    assert not any(row.output_tokens for row in rows)
    assert 'gen_ai_operation_name="embeddings"' in metrics
    assert path in described["paths"]


async def test_an_item_that_is_refused_has_its_line_and_costs_nothing(
    settings: Settings, database: Database
) -> None:
    """Each is answered as its request would be, in the error file, and a stream is refused."""
    bodies = [
        body_of(1),
        body_of(2, stream=True),
        body_of(3, max_tokens=1 << 20),
        body_of(4, service_tier="express"),
        body_of(5, nonsense=1),
    ]
    async with served(settings) as sluice:
        await sluice.price()
        draft = await submit(database, sluice.storage, sluice.key(), bodies)
        batch = await over(database, draft, 5)
        lines = await results_of(database, draft)
        asked = [await sluice.public.post(COMPLETIONS, json=body) for body in bodies[2:]]
    assert (batch.num_done, batch.num_failed) == (1, 4)
    answers = [line["response"] for line in lines]
    assert [one["status_code"] for one in answers] == [200, 400, 400, 400, 400]
    assert answers[1]["body"]["error"]["code"] == "streaming_unsupported"
    assert [one["body"] for one in answers[2:]] == [one.json() for one in asked]
    assert {line["error"] for line in lines} == {None}
    # What was refused before its model was known has no row, as no refused request has.
    rows = await ledger_of(database, sluice.key())
    assert [row.model for row in rows] == [MODEL] * 4
    assert sorted(row.nano_usd > 0 for row in rows) == [False] * 3 + [True]
    assert all(row.output_tokens == 0 for row in rows if not row.nano_usd)


async def test_an_answer_that_is_too_large_is_an_error(
    settings: Settings, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its line says so and fits, the others are answered, and what was computed is paid for."""
    monkeypatch.setattr("gateway.api.openai.items.MAX_ANSWER_BYTES", 1000)
    bodies = [body_of(1), body_of(2, n=8, max_tokens=40), body_of(3)]
    async with served(settings) as sluice:
        await sluice.price()
        draft = await submit(database, sluice.storage, sluice.key(), bodies)
        batch = await over(database, draft, 3)
        lines = await results_of(database, draft)
    assert (batch.num_done, batch.num_failed) == (2, 1)
    answer = next(line["response"] for line in lines if line["custom_id"] == "id-2")
    assert (answer["status_code"], answer["body"]["error"]["code"]) == (400, "answer_too_large")
    rows = await ledger_of(database, sluice.key())
    assert sorted(row.output_tokens for row in rows) == [8, 8, 320]


async def test_a_budget_pauses_a_batch_and_holds(settings: Settings, database: Database) -> None:
    """What fits is answered in full, the rest waits unharmed with a reason; rates do not apply."""
    async with served(settings) as sluice:
        await sluice.price()
        # An item costs some 20 micro-USD: some of twenty fit.
        quota = {"budget_nano_usd": 100_000, "rpm": 1, "output_tpm": 8}
        made = await sluice.admin.put("/admin/v1/quotas/tenant/acme", json=quota)
        assert made.status_code == 200, made.text
        bodies = [body_of(nth, max_tokens=9, ignore_eos=True) for nth in range(20)]
        draft = await submit(database, sluice.storage, sluice.key(), bodies)
        batch = await paused(database, draft)
        lines = await results_of(database, draft)
    assert batch.paused_for is PausedFor.BUDGET
    assert batch.paused_because is not None
    for told in ("Line ", "tenant 'acme' on budget", "holds all", "'max_tokens'"):
        assert told in batch.paused_because, batch.paused_because
    assert 0 < batch.num_done < 20
    assert {line["response"]["body"]["usage"]["completion_tokens"] for line in lines} == {9}
    rows = await ledger_of(database, sluice.key())
    assert len(rows) == batch.num_done == len(lines)
    assert sum(row.nano_usd for row in rows) <= 100_000
    assert await attempts_of(database, draft) == {("done", 1), ("pending", 0)}


async def test_a_process_that_ends_gives_its_items_back(
    settings: Settings, database: Database
) -> None:
    """What it ran goes back unharmed, unbilled, and the next process runs it."""
    async with served(settings, engine_profile=SLOW) as sluice:
        bodies = [body_of(nth, max_tokens=2000, ignore_eos=True) for nth in range(6)]
        draft = await submit(database, sluice.storage, sluice.key(), bodies)
        worker = sluice.gateway.worker
        assert worker is not None
        async with asyncio.timeout(30):
            while worker.num_claimed < 6:
                await asyncio.sleep(0.01)
    assert await attempts_of(database, draft) == {("pending", 0)}
    assert await ledger_of(database, sluice.key()) == []
