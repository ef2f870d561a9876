"""What a request's timeline has when it has ended, in each way that one can."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import httpx
import pytest
from starlette.routing import Route
from starlette.types import ASGIApp, Message

from gateway.api.access import tenant_only
from gateway.api.held_bytes import HeldBytes, held_answers
from gateway.api.idempotent import Idempotent
from gateway.api.public import with_errors
from gateway.domain.timeline import Timeline
from gateway.services.fair_pool import FairPool
from gateway.services.health.overload_watch import OverloadWatch
from gateway.services.inference.idempotency import IdempotencyService
from gateway.services.inference.models import ServedModel
from gateway.services.inference.service import InferenceService
from gateway.services.requests import EndedRequests
from gateway.store import Store
from gateway.telemetry import names
from scheduler.request import FinishReason, Request, RequestOutput
from scheduler.service import EngineService
from scheduler.stream import TokenStream
from tests.fake_quotas import leased
from tests.gateway.api.conftest import KEY, MODEL, api_over, open_client
from tests.gateway.api.scripted_service import ScriptedService
from tests.gateway.api.test_idempotent import SECRETS, Endpoint, Keys, client_of
from tests.gateway.api.test_overload import press

pytestmark = pytest.mark.anyio

PATH = "/v1/chat/completions"
BODY = {
    "model": MODEL,
    "max_tokens": 4,
    "ignore_eos": True,
    "messages": [{"role": "user", "content": "hi"}],
}


class Heard:
    """Listen to requests that end."""

    def __init__(self) -> None:
        self.ended = EndedRequests()
        self.timelines: list[Timeline] = []
        self.ended.add(self.timelines.append)

    def one(self) -> Timeline:
        """Return the only request that was told of, after checking that its phases tile it."""
        self.ended.flush()
        [timeline] = self.timelines
        assert timeline.ended_s is not None
        at_s = timeline.began_s
        for phase in timeline.phases:
            assert phase.begin_s == at_s
            at_s = phase.end_s
        assert at_s == timeline.ended_s
        return timeline


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
async def client(model: ServedModel, heard: Heard) -> AsyncIterator[httpx.AsyncClient]:
    async with open_client(model, ended=heard.ended) as client:
        yield client


def phases(timeline: Timeline) -> list[str]:
    return [phase.name for phase in timeline.phases]


async def test_an_answer_is_told_of_once(client: httpx.AsyncClient, heard: Heard) -> None:
    """A document's timeline has who asked, what it took, and each phase in its turn."""
    response = await client.post(PATH, json=BODY)
    timeline = heard.one()
    assert response.headers["x-request-id"] == f"req_{timeline.request_id}"
    assert (timeline.method, timeline.route) == ("POST", PATH)
    assert (timeline.status, timeline.code, timeline.outcome) == (200, "", "completed")
    assert (timeline.output_tokens, timeline.finish_reasons) == (4, ("length",))
    assert timeline.input_tokens == response.json()["usage"]["prompt_tokens"]
    assert timeline.tenant_id is not None
    assert timeline.key_id is not None
    assert (timeline.model, timeline.tier, timeline.is_stream) == (MODEL, "default", False)
    assert timeline.ttft_slo_s == 0.5
    wanted = [names.RESERVE, names.CHAT, names.SETTLE, names.SEND]
    assert [name for name in phases(timeline) if name in wanted] == wanted
    assert [phase.name for phase in timeline.inner] == [names.LEDGER]
    assert timeline.num_bytes == len(response.content)


async def test_a_stream_is_told_of_once(client: httpx.AsyncClient, heard: Heard) -> None:
    """A stream's timeline counts its events, and has when its first and last token came."""
    response = await client.post(PATH, json=BODY | {"stream": True})
    timeline = heard.one()
    assert (timeline.status, timeline.outcome, timeline.is_stream) == (200, "completed", True)
    assert timeline.num_events >= 1
    assert timeline.num_bytes == len(response.content)
    assert timeline.first_token_s is not None
    assert timeline.last_token_s is not None
    assert timeline.began_s < timeline.first_token_s <= timeline.last_token_s
    assert timeline.last_token_s <= (timeline.ended_s or 0)


@pytest.mark.parametrize(
    ("headers", "body", "status", "code", "last"),
    [
        ({"authorization": "Bearer no"}, BODY, 401, "invalid_api_key", names.SEND),
        ({}, BODY | {"max_tokens": "x"}, 400, "invalid_type", names.SEND),
        ({}, BODY | {"model": "other"}, 404, "model_not_found", names.SEND),
        ({}, BODY | {"max_tokens": 9999}, 400, "context_length_exceeded", names.SEND),
    ],
)
async def test_a_refusal_is_told_of_once(
    client: httpx.AsyncClient,
    heard: Heard,
    headers: dict[str, str],
    body: dict[str, Any],
    status: int,
    code: str,
    last: str,
) -> None:
    """What was refused has its status and code, and nothing was computed."""
    await client.post(PATH, json=body, headers=headers)
    timeline = heard.one()
    assert (timeline.status, timeline.code, timeline.outcome) == (status, code, "")
    assert (timeline.tenant_id is None) == (status == 401)
    assert phases(timeline)[-1] == last
    assert not timeline.facts


@pytest.mark.parametrize("path", ["/nowhere/canary", PATH])
async def test_what_is_not_there_is_told_of_without_its_path(
    client: httpx.AsyncClient, heard: Heard, path: str
) -> None:
    """A path that nobody serves is the client's text and is not kept."""
    await client.get(path)
    timeline = heard.one()
    assert timeline.status in (404, 405)
    assert "canary" not in timeline.route


async def test_overload_is_told_of_once(model: ServedModel, heard: Heard) -> None:
    """What the server's load refuses is told of as refused by that."""
    overload = OverloadWatch({}, memory_share=lambda: 0.0)
    press(overload, lag_s=1.0)
    async with open_client(model, overload, ended=heard.ended) as client:
        await client.post(PATH, json=BODY)
    assert heard.one().status == 503


async def test_a_bug_is_told_of_once(heard: Heard) -> None:
    """An exception that nobody raised on purpose ends as an internal error."""

    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise ValueError("canary")

    app = with_errors([Route("/x", _Raw(broken))], ended=heard.ended)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        await client.get("/x")
    timeline = heard.one()
    assert (timeline.status, timeline.code, timeline.route) == (500, "internal_error", "/x")


class _Raw:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._app(scope, receive, send)


async def test_an_engine_fault_is_told_of_once(
    scripted: ScriptedService, scripted_client: httpx.AsyncClient
) -> None:
    """A stream that fails after its head keeps its status and says what ended it."""
    heard = Heard()
    # The fixture's application, which httpx keeps to itself, has no listener: give it one.
    app: Any = scripted_client._transport.app.app  # type: ignore[attr-defined]
    app._ended = heard.ended
    scripted.script = [((5,), None), ((), FinishReason.ERROR)]
    await scripted_client.post(PATH, json=BODY | {"stream": True})
    timeline = heard.one()
    assert (timeline.status, timeline.code, timeline.outcome) == (200, "internal_error", "failed")


async def test_what_is_written_at_once_is_counted(
    scripted: ScriptedService, scripted_client: httpx.AsyncClient, words: list[int]
) -> None:
    """Events that are not sent but written are counted as events, with their bytes."""
    heard = Heard()
    # httpx keeps what it was given to itself.
    server: Any = scripted_client._transport.app  # type: ignore[attr-defined]
    server.app._ended = heard.ended
    scripted.script = [*(((word,), None) for word in words[:6]), ((), FinishReason.STOP)]
    response = await scripted_client.post(PATH, json=BODY | {"stream": True})
    timeline = heard.one()
    # All but the first, with the head, and the last.
    assert (server.num_written, timeline.num_events) == (5, 7)
    assert timeline.num_bytes == len(response.content)


@asynccontextmanager
async def real_app(model: ServedModel, heard: Heard) -> AsyncIterator[ASGIApp]:
    inference = InferenceService(salt_key=b"salt" * 8, pool=FairPool())
    async with leased(inference) as leases:
        yield api_over(leases, model, ended=heard.ended)
    inference.pool.close()


class Endless(ScriptedService):
    """Draw one token, and no more until it is cancelled."""

    def submit(self, request: Request) -> TokenStream:
        def cancel(request_id: str) -> None:
            stream.push(RequestOutput(request_id, (), FinishReason.CANCELLED, 0, 1))

        stream = TokenStream(request.request_id, cancel)
        stream.push(RequestOutput(request.request_id, (5,), None, 0, 1))
        return stream


async def test_a_client_that_leaves_is_told_of_once(model: ServedModel, heard: Heard) -> None:
    """What it used is billed as cancelled, and the timeline says so."""
    began, messages = asyncio.Event(), [json.dumps(BODY | {"stream": True, "max_tokens": 200})]

    async def receive() -> Message:
        if messages:
            body = messages.pop().encode()
            return {"type": "http.request", "body": body, "more_body": False}
        await began.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            began.set()

    endless = replace(model, service=cast(EngineService, Endless()))
    async with real_app(endless, heard) as app:
        await app(_scope(), receive, send)
    timeline = heard.one()
    assert (timeline.status, timeline.outcome) == (200, "cancelled")
    assert (timeline.code, timeline.is_stream) == ("client_gone", True)


async def test_a_client_that_leaves_before_its_body_is_told_of_once(
    model: ServedModel, heard: Heard
) -> None:
    """Nobody was answered, and nothing was computed."""

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        raise AssertionError("nobody is there")

    async with real_app(model, heard) as app:
        await app(_scope(), receive, send)
    timeline = heard.one()
    assert (timeline.status, timeline.code, timeline.outcome) == (0, "client_gone", "")


def _scope() -> dict[str, Any]:
    return {
        "type": "http",
        "method": "POST",
        "path": PATH,
        "raw_path": PATH.encode(),
        "query_string": b"",
        "headers": [(b"authorization", f"Bearer {KEY}".encode()), (b"content-length", b"100")],
        "client": ("127.0.0.1", 1),
    }


async def test_a_keyed_request_and_its_replay_are_told_of_once_each(
    heard: Heard, store: Store
) -> None:
    """What runs apart from its client is over when its answer is kept; a replay claims alone."""
    service = IdempotencyService(store.idempotency, SECRETS)
    keyed = Idempotent(Endpoint(), service, HeldBytes(), held_answers())
    route = tenant_only(PATH, keyed, Keys(store), method="POST")
    app = with_errors([route], ended=heard.ended)
    async with service.running(), client_of(app) as client:
        for _ in range(2):
            await client.post(PATH, content=b"{}")
    first, second = heard.timelines
    assert (first.status, second.status) == (200, 200)
    assert names.KEEP in phases(first)
    assert phases(second)[-2:] == [names.CLAIM, names.SEND]
