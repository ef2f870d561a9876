"""`/v1/batches` as OpenAI's client sees it, over a gateway with a real store."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from gateway.app.gateway import open_gateway
from gateway.domain.batch import PausedFor
from gateway.errors import PermissionDenied
from gateway.services.batches import NewBatch
from gateway.settings import Settings
from gateway.store import Store
from gateway.store.storage_place import FILES_DIR
from tests.gateway.services.batches.world import World, open_world, requests

pytestmark = pytest.mark.anyio

GONE = "0" * 32


@dataclass(slots=True)
class Api:
    """Hold a gateway's public API with the store below it."""

    world: World
    http: httpx.AsyncClient

    def client(self, tenant: int = 0) -> AsyncOpenAI:
        assert self.world.store.first_start is not None
        key = self.world.store.first_start.keys[tenant].token
        return AsyncOpenAI(
            api_key=key, base_url="http://test/v1", http_client=self.http, max_retries=0
        )

    async def upload(self, data: bytes, **more: Any) -> str:
        return f"file-{(await self.world.upload(data, **more)).hex}"


@pytest.fixture
async def api(store: Store, settings: Settings) -> AsyncIterator[Api]:
    async with open_api(store, settings) as opened:
        yield opened


@asynccontextmanager
async def open_api(store: Store, settings: Settings, **more: Any) -> AsyncIterator[Api]:
    """Open a gateway beside the store that the test looks into: on another data directory."""
    own = settings.data_dir.with_name("gateway")
    shutil.copytree(settings.data_dir / "secrets", own / "secrets")
    files = settings.data_dir / FILES_DIR
    changes = {"data_dir": own, "engine": "simulated", "model_name": "sim"}
    # What is run, the test runs.
    changes |= {"file_storage": str(files), "quota_build_s": 0.0, "batch_worker": False}
    changes |= more
    async with (
        open_world(store, files) as world,
        open_gateway(settings.model_copy(update=changes)) as gateway,
        httpx.AsyncClient(
            transport=httpx.ASGITransport(gateway.public), base_url="http://test"
        ) as http,
    ):
        yield Api(world, http)


async def settled(client: AsyncOpenAI, batch_id: str, status: str) -> Any:
    """Wait until a batch has a status."""
    async with asyncio.timeout(60):
        while (batch := await client.batches.retrieve(batch_id)).status != status:
            await asyncio.sleep(0.05)
    return batch


async def made(api: Api, data: bytes, **more: Any) -> Any:
    asked = {"endpoint": "/v1/completions", "completion_window": "24h"} | more
    asked.setdefault("input_file_id", await api.upload(data))
    return await api.client().batches.create(**asked)


async def test_openais_client_drives_a_batch(api: Api) -> None:
    """Made, looked at while it runs, and ended with a file; each field is where OpenAI has it."""
    client = api.client()
    batch = await made(api, requests(4), metadata={"night": "1"})
    assert (batch.object, batch.status, batch.errors) == ("batch", "validating", None)
    assert (batch.request_counts.total, batch.in_progress_at) == (0, None)
    assert batch.expires_at - batch.created_at == 86_400
    batch = await settled(client, batch.id, "in_progress")
    assert (batch.request_counts.total, batch.metadata, batch.model) == (4, {"night": "1"}, "sim")
    [own] = await api.world.store.batches.open_batches()
    await api.world.run(own, 3)
    await api.world.run(own, 1, is_error=True)
    batch = await settled(client, batch.id, "completed")
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (4, 3, 1)
    assert batch.usage.total_tokens == batch.usage.input_tokens + batch.usage.output_tokens > 0
    assert (batch.usage.cost_nano_usd, batch.usage.saved_nano_usd) == (4 * 1234, 8 * 1234)
    assert batch.created_at <= batch.in_progress_at <= batch.finalizing_at <= batch.completed_at
    assert (batch.failed_at, batch.cancelled_at, batch.expired_at) == (None, None, None)
    assert batch.output_file_id.startswith("file-")
    assert batch.error_file_id.startswith("file-")
    assert batch.completion_window == "24h"


async def test_what_has_no_price_tells_no_cost(api: Api) -> None:
    """Neither cost nor savings while nothing is known of a price; zeros where there is one."""
    client = api.client()
    batch = await made(api, requests(1))
    assert (batch.usage.cost_nano_usd, batch.usage.saved_nano_usd) == (None, None)
    batch = await settled(client, batch.id, "in_progress")
    assert (batch.usage.cost_nano_usd, batch.usage.saved_nano_usd) == (0, 0)
    [own] = await api.world.store.batches.open_batches()
    await api.world.alter(own, "price_ids = '{}'")
    batch = await client.batches.retrieve(batch.id)
    assert (batch.usage.cost_nano_usd, batch.usage.saved_nano_usd) == (None, None)


async def test_bad_input_fails_in_the_open(api: Api) -> None:
    """The batch is made, then says which lines are wrong, as OpenAI's do."""
    batch = await made(api, requests(1) + b"{\n" + requests(2, stream=True)[:-1])
    batch = await settled(api.client(), batch.id, "failed")
    found = [(error.code, error.line, error.param) for error in batch.errors.data]
    assert found == [
        ("invalid_json_line", 2, None),
        ("streaming_unsupported", 3, "body.stream"),
        ("streaming_unsupported", 4, "body.stream"),
    ]
    assert batch.errors.object == "list"
    assert (batch.failed_at is None, batch.request_counts.total) == (False, 0)


async def test_a_batch_is_cancelled(api: Api) -> None:
    """It is cancelling until what ran has ended; what it had not begun is in the error file."""
    client = api.client()
    batch = await made(api, requests(3))
    await settled(client, batch.id, "in_progress")
    [own] = await api.world.store.batches.open_batches()
    await api.world.run(own, 1)
    assert (await client.batches.cancel(batch.id)).status in ("cancelling", "cancelled")
    batch = await settled(client, batch.id, "cancelled")
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (3, 1, 2)
    assert batch.cancelling_at <= batch.cancelled_at
    assert (await client.batches.cancel(batch.id)).status == "cancelled"


async def test_batches_are_listed_in_pages(api: Api) -> None:
    """The newest first, a page after another, and only the tenant's own."""
    file_id = await api.upload(requests(1))
    ids = [(await made(api, b"", input_file_id=file_id)).id for _ in range(5)]
    page = await api.client().batches.list(limit=2)
    assert [batch.id for batch in page.data] == ids[:2:-1]
    assert page.has_more
    assert [batch.id async for batch in api.client().batches.list(limit=2)] == ids[::-1]
    assert (await api.client(tenant=1).batches.list()).data == []


async def test_another_tenants_are_not_there(api: Api) -> None:
    """Its batch and its file look like what never was, whatever is done with them."""
    batch = await made(api, requests(1))
    stranger = api.client(tenant=1)
    for batch_id in (batch.id, f"batch_{GONE}", "batch_1", "nothing"):
        for call in (stranger.batches.retrieve, stranger.batches.cancel):
            with pytest.raises(openai.NotFoundError):
                await call(batch_id)
        with pytest.raises(openai.NotFoundError) as unlisted:
            await stranger.batches.list(after=batch_id)
        assert unlisted.value.param == "after"
    for file_id in (batch.input_file_id, f"file-{GONE}", "file-1", "nothing"):
        with pytest.raises(openai.NotFoundError) as raised:
            await stranger.batches.create(
                input_file_id=file_id, endpoint="/v1/completions", completion_window="24h"
            )
        assert raised.value.code == "file_not_found"
        assert raised.value.param == "input_file_id"


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"endpoint": "/v1/nothing"}, "endpoint"),
    ({"completion_window": "24"}, "completion_window"),
    ({"completion_window": "0h"}, "completion_window"),
    ({"completion_window": "169h"}, "completion_window"),
    ({"completion_window": "1s"}, "completion_window"),
    ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
    ({"metadata": {"x" * 65: ""}}, "metadata"),
    ({"metadata": {"x": "y" * 513}}, "metadata"),
    ({"metadata": {"x": "\x00"}}, "metadata"),
    (
        {"output_expires_after": {"anchor": "created_at", "seconds": 60}},
        "output_expires_after.seconds",
    ),
    ({"extra_body": {"nothing": 1}}, "nothing"),
    ({"extra_headers": {"Idempotency-Key": "x" * 256}}, "Idempotency-Key"),
]


async def test_what_cannot_be_asked_is_refused_by_name(api: Api) -> None:
    """A 400 names the field, and no batch is made."""
    file_id = await api.upload(requests(1))
    for changes, param in REFUSED:
        with pytest.raises(openai.BadRequestError) as raised:
            await made(api, b"", input_file_id=file_id, **changes)
        assert raised.value.param == param, changes
    assert (await api.client().batches.list()).data == []


async def test_an_input_must_be_meant_for_batches(api: Api) -> None:
    """A file that was uploaded for something else is refused."""
    file_id = await api.upload(requests(1), purpose="user_data")
    with pytest.raises(openai.BadRequestError, match="purpose must be 'batch'"):
        await made(api, b"", input_file_id=file_id)


async def test_windows_may_be_shorter_and_longer(api: Api) -> None:
    """It is said back as it was meant, and is when the batch expires."""
    for window, seconds in (("1m", 60), ("90m", 5400), ("168h", 604_800)):
        batch = await made(api, requests(1), completion_window=window)
        assert batch.completion_window == window
        assert batch.expires_at - batch.created_at == seconds


async def test_an_idempotency_key_makes_a_batch_once(api: Api) -> None:
    """The same again is the same batch; something else under that key is refused."""
    file_id = await api.upload(requests(1))
    keyed = {"input_file_id": file_id, "extra_headers": {"Idempotency-Key": "night 1"}}
    first = await made(api, b"", **keyed)
    assert (await made(api, b"", **keyed)).id == first.id
    with pytest.raises(openai.UnprocessableEntityError):
        await made(api, b"", **keyed, metadata={"other": "1"})


async def test_a_key_that_may_not_batch_is_refused(api: Api) -> None:
    """The service says so by name; looking at the tenant's batches stays open to it."""
    principal = replace(api.world.principal(), allows_batch=False)
    file_id = await api.world.upload(requests(1))
    asked = NewBatch(file_id, "/v1/completions", "24h")
    with pytest.raises(PermissionDenied):
        await api.world.service().create(principal, asked)
    page = await api.world.service().page(principal.tenant_id, limit=5)
    assert page.data == []


async def test_a_pause_is_told(api: Api) -> None:
    """While nothing of it is run, the batch says why."""
    client = api.client()
    batch = await made(api, requests(1))
    await settled(client, batch.id, "in_progress")
    [own] = await api.world.store.batches.open_batches()
    await api.world.store.batches.pause({own.id: "Line 3: no."}, PausedFor.BUDGET)
    paused = await client.batches.retrieve(batch.id)
    # Fields of ours, which the SDK's type does not have.
    said = paused.model_dump()
    assert (said["paused_for"], said["paused_because"]) == ("budget", "Line 3: no.")
    assert paused.errors is None


async def test_requests_without_a_key_are_refused(api: Api) -> None:
    """Before anything is read of them."""
    for method, path in (
        ("POST", "/v1/batches"),
        ("GET", "/v1/batches"),
        ("GET", f"/v1/batches/batch_{GONE}"),
        ("POST", f"/v1/batches/batch_{GONE}/cancel"),
    ):
        assert (await api.http.request(method, path)).status_code == 401
