"""Stored responses on a whole gateway: real stores, the demo model or a simulated engine."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from sqlalchemy import text

from gateway.app.gateway import open_gateway
from gateway.domain.usage import Outcome
from gateway.settings import Settings
from gateway.store.database import Database
from tests.gateway.api.responses.serving import checked, events_of
from tests.gateway.app.test_batch_work import MODEL, Served, _client, served
from tests.gateway.submitted import ledger_of, over, results_of, submit

pytestmark = pytest.mark.anyio

PATH = "/v1/responses"
ASKED = {"model": MODEL, "input": "What is Sluice?", "max_output_tokens": 12, "temperature": 0}


def other_tenant(sluice: Served) -> httpx.AsyncClient:
    first = sluice.gateway.first_start
    assert first is not None
    return _client(sluice.gateway.public, first.keys[1].token)


async def test_a_conversation_goes_on_and_its_beginning_is_found_in_the_cache(
    settings: Settings,
) -> None:
    """Each turn finds what was computed for those before; nobody else finds the responses."""
    async with served(settings, engine=settings.engine, block_size=16) as sluice:
        previous, cached = None, []
        for number in range(4):
            asked = ASKED | {"input": f"Question {number}", "previous_response_id": previous}
            made = checked(await sluice.public.post(PATH, json=asked))
            assert made["store"] is True
            assert checked(await sluice.public.get(f"{PATH}/{made['id']}")) == made
            cached.append(made["usage"]["input_tokens_details"]["cached_tokens"])
            previous = made["id"]
        assert cached == sorted(cached)
        assert cached[-1] > cached[1] > 0
        stranger = other_tenant(sluice)
        for method, path in (
            ("GET", f"{PATH}/{previous}"),
            ("GET", f"{PATH}/{previous}/input_items"),
            ("POST", f"{PATH}/{previous}/cancel"),
            ("DELETE", f"{PATH}/{previous}"),
        ):
            refused = await stranger.request(method, path)
            assert refused.status_code == 404, path
            assert refused.json()["error"]["code"] == "response_not_found"
        refused = await stranger.post(PATH, json=ASKED | {"previous_response_id": previous})
        assert refused.json()["error"]["code"] == "previous_response_not_found"
        gone = await sluice.public.delete(f"{PATH}/{previous}")
        assert gone.json()["deleted"] is True
        assert (await sluice.public.get(f"{PATH}/{previous}")).status_code == 404


async def test_what_is_stored_outlives_the_process(settings: Settings) -> None:
    """A later process with the same secrets goes on from it."""
    async with served(settings) as sluice:
        made = checked(await sluice.public.post(PATH, json=ASKED))
        token = sluice.public.headers["authorization"].removeprefix("Bearer ")
    again = settings.model_copy(update={"engine": "simulated", "quota_build_s": 0.0})
    async with open_gateway(again) as gateway:
        client = _client(gateway.public, token)
        assert checked(await client.get(f"{PATH}/{made['id']}")) == made
        asked = ASKED | {"previous_response_id": made["id"]}
        assert checked(await client.post(PATH, json=asked))["usage"]["input_tokens"] > 0


async def test_it_is_charged_as_a_chat_is(settings: Settings, database: Database) -> None:
    """The same tokens at the same price, streamed or not, and half of it in a batch."""
    chat = {
        "model": MODEL,
        "messages": [{"role": "user", "content": ASKED["input"]}],
        "max_tokens": 12,
        "temperature": 0,
    }
    async with served(settings, engine=settings.engine) as sluice:
        await sluice.price()
        told = (await sluice.public.post("/v1/chat/completions", json=chat)).json()
        whole = checked(await sluice.public.post(PATH, json=ASKED))
        streamed = events_of((await sluice.public.post(PATH, json=ASKED | {"stream": True})).text)
        said = whole["output"][0]["content"][0]["text"]
        assert said == told["choices"][0]["message"]["content"]
        assert streamed[-1]["response"]["output"][0]["content"][0]["text"] == said
        bodies: list[dict[str, object]] = [
            ASKED,
            ASKED | {"previous_response_id": whole["id"]},
            ASKED | {"store": True},
        ]
        draft = await submit(database, sluice.storage, sluice.key(), bodies, endpoint=PATH)
        await over(database, draft, 3)
        lines = await results_of(database, draft)
        metrics = (await sluice.admin.get("/metrics")).text
    assert [line["response"]["status_code"] for line in lines] == [200, 400, 400]
    made = lines[0]["response"]["body"]
    assert made["output"][0]["content"][0]["text"] == said
    assert made["store"] is False
    rows = [row for row in await ledger_of(database, sluice.key()) if row.nano_usd]
    online = [row for row in rows if not row.is_batch]
    [item] = [row for row in rows if row.is_batch]
    assert len(online) == 3
    assert {row.outcome for row in rows} == {Outcome.COMPLETED}
    assert len({(row.input_tokens, row.output_tokens) for row in rows}) == 1
    # What was found in the cache costs less.
    assert len({row.nano_usd for row in online[1:]}) == 1
    assert item.nano_usd * 2 == online[-1].nano_usd
    assert f'http_route="{PATH}"' in metrics


async def test_a_key_has_the_answer_once(settings: Settings, database: Database) -> None:
    """A retry gets the same response, streamed or not, and nothing is computed or billed again."""
    async with served(settings) as sluice:
        await sluice.price()
        for number, body in enumerate((ASKED, ASKED | {"stream": True})):
            headers = {"idempotency-key": f"k{number}"}
            first = await sluice.public.post(PATH, json=body, headers=headers)
            second = await sluice.public.post(PATH, json=body, headers=headers)
            assert first.content == second.content
            assert second.headers["idempotent-replayed"] == "true"
    assert len(await ledger_of(database, sluice.key())) == 2


async def test_a_client_that_leaves_is_billed_and_nothing_is_stored(
    settings: Settings, database: Database
) -> None:
    """Its row of the ledger says that it was cancelled, as a chat's does."""
    async with served(settings) as sluice:
        await sluice.price()
        body = ASKED | {"max_output_tokens": 200, "stream": True}
        task = asyncio.create_task(sluice.public.post(PATH, json=body))
        [model] = sluice.gateway.models
        while not model.service.snapshot().running:
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    rows = await ledger_of(database, sluice.key())
    assert [row.outcome for row in rows] == [Outcome.CANCELLED]
    async with database.platform() as connection:
        assert await connection.scalar(text("SELECT count(*) FROM responses")) == 0
