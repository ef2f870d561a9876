"""`Idempotency-Key` on inference, over a real PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import httpx
import pytest
from sqlalchemy import func, select, text, update
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.api.access import tenant_only
from gateway.api.client_left import CLIENT_LEFT
from gateway.api.held_bytes import HeldBytes, held_answers
from gateway.api.idempotent import Idempotent
from gateway.api.public import public_app, with_errors
from gateway.api.sse import MESSAGE_STOP
from gateway.api.write_now import WRITE_NOW
from gateway.credentials import Secrets
from gateway.domain import Principal
from gateway.domain.timeline import Timeline
from gateway.errors import Overloaded, StoreUnavailable
from gateway.services.auth.authenticator import Authenticator
from gateway.services.fair_pool import FairPool
from gateway.services.health.overload_watch import OverloadWatch
from gateway.services.inference.idempotency import IdempotencyService
from gateway.services.inference.leased import LeasedInference
from gateway.services.inference.models import ModelRegistry, ServedModel
from gateway.services.inference.service import InferenceService
from gateway.services.read_rate import ReadRate
from gateway.store import Store
from gateway.store.idempotency import SqlIdempotency
from gateway.store.tables import idempotency
from tests.fake_quotas import leased
from tests.gateway.api.conftest import serving_health
from tests.gateway.api.writes_now import WritesNow

pytestmark = pytest.mark.anyio

PATH = "/v1/chat/completions"
SECRETS = Secrets(b"r" * 32)
CANARY = b"the answer is forty-two"
JSON = (b"application/json", [b'{"text": "' + CANARY + b'"}'])
STREAM = (
    b"text/event-stream; charset=utf-8",
    [b"data: " + CANARY + b"\n\n", b"data: more\n\n", b"data: [DONE]\n\n"],
)
MESSAGE = (
    b"text/event-stream; charset=utf-8",
    [b"event: ping\ndata: {}\n\n", MESSAGE_STOP],
)


class Endpoint:
    """Answer as the test says; hold the last piece back until `gate` opens."""

    def __init__(self, answer: tuple[bytes, list[bytes]] = JSON) -> None:
        self.content_type, self.pieces = answer
        self.status = 200
        self.fault: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.bodies: list[bytes] = []
        self.began = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.bodies.append((await receive())["body"])
        self.began.set()
        if self.fault is not None:
            raise self.fault
        headers = [(b"content-type", self.content_type), (b"x-cost", b"1")]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        for piece in self.pieces[:-1]:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await self.gate.wait()
        await send({"type": "http.response.body", "body": self.pieces[-1]})


class Keys:
    """Know the two keys of the first start by their tenants' names."""

    def __init__(self, store: Store) -> None:
        self._authenticator = Authenticator(store.keys, store.secrets)
        assert store.first_start is not None
        self.tokens = {issued.key.tenant: issued.token for issued in store.first_start.keys}

    async def authenticate(self, token: str, timeline: object = None) -> Principal:
        return await self._authenticator.authenticate(self.tokens[token])


@asynccontextmanager
async def client_of(app: ASGIApp) -> AsyncIterator[httpx.AsyncClient]:
    """Make a client that speaks with acme's key, as `order-1`."""
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    headers = {"authorization": "Bearer acme", "idempotency-key": "order-1"}
    async with httpx.AsyncClient(
        transport=transport, base_url="http://test", headers=headers, timeout=60
    ) as client:
        yield client


@asynccontextmanager
async def served(
    store: Store,
    endpoint: ASGIApp,
    service: IdempotencyService | None = None,
    bodies: HeldBytes | None = None,
    answers: HeldBytes | None = None,
    reads: ReadRate | None = None,
) -> AsyncIterator[httpx.AsyncClient]:
    service = service or IdempotencyService(store.idempotency, SECRETS)
    app = Idempotent(endpoint, service, bodies or HeldBytes(), answers or held_answers(), reads)
    route = tenant_only(PATH, app, Keys(store), method="POST")
    async with service.running(), client_of(with_errors([route])) as client:
        yield client


def code_of(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


async def test_what_runs_does_not_end_with_its_client(store: Store) -> None:
    """It has nothing by which our server tells of a client, or writes to it, past the relay."""
    known: list[object] = []

    async def endpoint(scope: Scope, receive: Receive, send: Send) -> None:
        known.extend(scope["state"].get(name) for name in (CLIENT_LEFT, WRITE_NOW))
        await Endpoint()(scope, receive, send)

    service = IdempotencyService(store.idempotency, SECRETS)
    kept = Idempotent(endpoint, service, HeldBytes(), held_answers())
    app = with_errors([tenant_only(PATH, kept, Keys(store), method="POST")])

    async def offering(scope: Scope, receive: Receive, send: Send) -> None:
        extensions = {CLIENT_LEFT: lambda call: None, WRITE_NOW: lambda data: False}
        await app({**scope, "extensions": extensions}, receive, send)

    async with service.running(), client_of(offering) as client:
        assert (await client.post(PATH, content=b"{}")).status_code == 200
        del client.headers["idempotency-key"]
        assert (await client.post(PATH, content=b"{}")).status_code == 200
    assert known[:2] == [None, None]
    assert None not in known[2:]


@pytest.mark.parametrize("answer", [JSON, STREAM, MESSAGE], ids=["document", "stream", "message"])
async def test_a_retry_gets_the_same_bytes(store: Store, answer: Any) -> None:
    """What was answered once is answered again, and the endpoint runs once."""
    endpoint = Endpoint(answer)
    async with served(store, endpoint) as client:
        first = await client.post(PATH, content=b"{}")
        second = await client.post(PATH, content=b"{}")
    assert endpoint.bodies == [b"{}"]
    assert first.content == second.content == b"".join(answer[1])
    assert first.headers["content-type"] == second.headers["content-type"]
    assert first.headers["x-cost"] == "1"
    assert "idempotent-replayed" not in first.headers
    assert second.headers["idempotent-replayed"] == "true"


async def test_a_body_is_held_as_long_as_its_run(store: Store) -> None:
    """A keyed request goes on without its client, and its body counts until it has ended."""
    endpoint, bodies = Endpoint(), HeldBytes()
    endpoint.gate.clear()
    async with served(store, endpoint, bodies=bodies) as client:
        task = asyncio.create_task(client.post(PATH, content=b"x" * 1000))
        await endpoint.began.wait()
        task.cancel()
        await asyncio.sleep(0.05)
        assert bodies.num_bytes == 1000
        endpoint.gate.set()
        for _ in range(500):
            if not bodies.num_bytes:
                break
            await asyncio.sleep(0.01)
        assert bodies.num_bytes == 0
        assert (await client.post(PATH, content=b"other")).status_code == 422
        assert bodies.num_bytes == 0


async def test_without_the_header_nothing_is_kept(store: Store) -> None:
    """A request that asks for nothing runs every time and leaves no record."""
    endpoint = Endpoint()
    async with served(store, endpoint) as client:
        del client.headers["idempotency-key"]
        for _ in range(2):
            assert (await client.post(PATH, content=b"{}")).status_code == 200
    assert len(endpoint.bodies) == 2
    assert await num_records(store) == 0


async def test_a_retry_of_what_runs_is_told_to_wait(store: Store) -> None:
    """409 with a time to wait while the first runs, its answer after that."""
    endpoint = Endpoint()
    endpoint.gate.clear()
    async with served(store, endpoint) as client:
        first = asyncio.create_task(client.post(PATH, content=b"{}"))
        await endpoint.began.wait()
        early = await client.post(PATH, content=b"{}")
        assert code_of(early) == (409, "idempotency_conflict")
        assert early.headers["retry-after"] == "1"
        assert "x-should-retry" not in early.headers
        endpoint.gate.set()
        assert (await first).content == (await client.post(PATH, content=b"{}")).content
    assert len(endpoint.bodies) == 1


async def test_another_body_is_refused(store: Store) -> None:
    """One key is one request: another body gets 422, while the first runs and after."""
    endpoint = Endpoint()
    endpoint.gate.clear()
    async with served(store, endpoint) as client:
        first = asyncio.create_task(client.post(PATH, content=b"{}"))
        await endpoint.began.wait()
        assert code_of(await client.post(PATH, content=b"{ }")) == (422, "idempotency_mismatch")
        endpoint.gate.set()
        await first
        assert code_of(await client.post(PATH, content=b"{ }")) == (422, "idempotency_mismatch")


async def test_a_run_goes_on_without_its_client(store: Store) -> None:
    """The client leaves in the middle; the retry gets the whole answer of the same run."""
    endpoint = Endpoint(STREAM)
    endpoint.gate.clear()
    async with served(store, endpoint) as client:
        first = asyncio.create_task(client.post(PATH, content=b"{}"))
        await endpoint.began.wait()
        first.cancel()
        await asyncio.wait([first])
        assert code_of(await client.post(PATH, content=b"{}")) == (409, "idempotency_conflict")
        endpoint.gate.set()
        retried = await until(client, lambda response: response.status_code == 200)
    assert retried.content == b"".join(STREAM[1])
    assert len(endpoint.bodies) == 1


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (500, JSON),
        (200, (STREAM[0], [b"data: one\n\n", b'data: {"error": {}}\n\n'])),
    ],
    ids=["status", "broken stream"],
)
async def test_what_failed_runs_anew(store: Store, status: int, answer: Any) -> None:
    """Only whole answers are kept: after an error a retry has its chance."""
    endpoint = Endpoint(answer)
    endpoint.status = status
    async with served(store, endpoint) as client:
        first = await client.post(PATH, content=b"{}")
        assert (first.status_code, first.content) == (status, b"".join(answer[1]))
        endpoint.status, (endpoint.content_type, endpoint.pieces) = 200, JSON
        second = await client.post(PATH, content=b"{}")
    assert second.content == JSON[1][0]
    assert len(endpoint.bodies) == 2


async def test_a_refusal_keeps_its_status_and_is_not_kept(store: Store) -> None:
    """What the endpoint raises is answered as ever, and the key is free again."""
    endpoint = Endpoint()
    endpoint.fault = Overloaded(retry_after_s=7)
    async with served(store, endpoint) as client:
        refused = await client.post(PATH, content=b"{}")
        assert code_of(refused) == (503, "overloaded")
        assert refused.headers["retry-after"] == "7"
        assert await num_records(store) == 0
        endpoint.fault = None
        assert (await client.post(PATH, content=b"{}")).status_code == 200


async def test_a_dead_process_is_succeeded(store: Store) -> None:
    """Once the lease has passed, a retry runs anew; what the old run says then is not kept."""
    old, new = Endpoint((JSON[0], [b"old"])), Endpoint((JSON[0], [b"new"]))
    old.gate.clear()
    async with served(store, old) as paused, served(store, new) as client:
        first = asyncio.create_task(paused.post(PATH, content=b"{}"))
        await old.began.wait()
        assert code_of(await client.post(PATH, content=b"{}")) == (409, "idempotency_conflict")
        async with store.database.platform() as connection:
            await connection.execute(update(idempotency).values(lease_until=func.now()))
        assert (await client.post(PATH, content=b"{}")).content == b"new"
        old.gate.set()
        assert (await first).content == b"old"
        assert (await client.post(PATH, content=b"{}")).content == b"new"


async def test_answers_are_unreadable_at_rest(store: Store) -> None:
    """The table's bytes hold nothing of the answer, and open for their own record alone."""
    endpoint = Endpoint()
    async with served(store, endpoint) as client:
        await client.post(PATH, content=b"{}")
        async with store.database.platform() as connection:
            dump = (await connection.execute(text("SELECT i::text FROM idempotency i"))).scalar()
            kept = (await connection.execute(select(idempotency.c.answer))).scalar_one()
            assert CANARY not in kept
            assert CANARY.hex() not in str(dump)
        # Moved to another record, it is nobody's answer.
        client.headers["idempotency-key"] = "order-2"
        await client.post(PATH, content=b"{}")
        async with store.database.platform() as connection:
            await connection.execute(update(idempotency).values(answer=kept))
        moved = await client.post(PATH, content=b"{}")
    assert code_of(moved) == (409, "idempotency_answer_not_kept")


async def test_an_answer_too_large_is_told_of_and_not_run_again(store: Store) -> None:
    """Its client gets it whole; a retry is told that it is gone, and not to try again."""
    endpoint = Endpoint((STREAM[0], [bytes(2000), bytes(2000), b"data: [DONE]\n\n"]))
    service = IdempotencyService(store.idempotency, SECRETS, max_answer_bytes=1024)
    async with served(store, endpoint, service) as client:
        assert len((await client.post(PATH, content=b"{}")).content) == 4014
        again = await client.post(PATH, content=b"{}")
    assert code_of(again) == (409, "idempotency_answer_not_kept")
    assert again.headers["x-should-retry"] == "false"
    assert len(endpoint.bodies) == 1


async def test_a_slow_client_holds_no_run_up_below_the_bound(store: Store) -> None:
    """A client that takes nothing finds its whole answer buffered; the run has ended before."""
    endpoint = Endpoint(STREAM)
    service = IdempotencyService(store.idempotency, SECRETS)
    app = Idempotent(endpoint, service, HeldBytes(), held_answers())
    reads, sent = asyncio.Event(), []

    async def send(message: Any) -> None:
        await reads.wait()
        sent.append(message.get("body", b""))

    assert store.first_start is not None
    key = store.first_start.keys[0].key
    record = await store.keys.find(key.kid)
    assert record is not None
    scope = {
        "path": PATH,
        "headers": [(b"idempotency-key", b"slow")],
        "state": {
            "principal": record.principal,
            "request_id": "0" * 32,
            "timeline": Timeline("0" * 32, 0.0, 0),
        },
    }

    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}"}

    async with service.running():
        answering = asyncio.create_task(app(scope, receive, send))
        while await num_records(store, idempotency.c.status == 200) == 0:
            assert not answering.done(), answering.exception()
            await asyncio.sleep(0.01)
        reads.set()
        await answering
    assert sent == [b"", *STREAM[1]]


async def test_answers_that_are_sent_again_are_reads(store: Store) -> None:
    """Who asks for a kept answer more often than it may read is told to wait."""
    endpoint = Endpoint()
    async with served(store, endpoint, reads=ReadRate(1, hold_s=0.0)) as client:
        codes = [(await client.post(PATH, content=b"{}")).status_code for _ in range(30)]
        again = await client.post(PATH, content=b"{}")
    assert codes[:2] == [200, 200]
    assert again.status_code == 429
    assert len(endpoint.bodies) == 1


async def test_answers_that_nobody_reads_are_held_in_room(store: Store) -> None:
    """While a client does not read a kept answer of 300 bytes, of 512, another has no room.

    There is once that has gone.
    """
    answers = held_answers(2048)
    endpoint = Endpoint((b"application/json", [b"x" * 300]))
    service = IdempotencyService(store.idempotency, SECRETS)
    app = Idempotent(endpoint, service, HeldBytes(), answers)
    async with served(store, endpoint, service, answers=answers) as client:
        await client.post(PATH, content=b"{}")
        assert answers.num_bytes == 0
        assert store.first_start is not None
        key = next(issued.key for issued in store.first_start.keys if issued.key.tenant == "acme")
        record = await store.keys.find(key.kid)
        assert record is not None

        async def never(message: Any) -> None:
            await asyncio.Event().wait()

        async def receive() -> Any:
            return {"type": "http.request", "body": b"{}"}

        scope = {
            "path": PATH,
            "headers": [(b"idempotency-key", b"order-1")],
            "state": {
                "principal": record.principal,
                "request_id": uuid4().hex,
                "timeline": Timeline("0" * 32, 0.0, 0),
            },
        }
        unread = asyncio.create_task(app(scope, receive, never))
        while answers.num_bytes < 300:
            assert not unread.done()
            await asyncio.sleep(0.001)
        refused = await client.post(PATH, content=b"{}")
        assert code_of(refused) == (429, "answers_too_large")
        unread.cancel()
        await asyncio.gather(unread, return_exceptions=True)
        assert answers.num_bytes == 0
        assert (await client.post(PATH, content=b"{}")).status_code == 200


async def test_an_answer_without_room_is_given_and_not_kept(store: Store) -> None:
    """A run is not cut short for what its answer takes twice; a retry is told that it is gone."""
    endpoint = Endpoint((b"application/json", [b"x" * 300]))
    answers = held_answers(1024)
    async with served(store, endpoint, answers=answers) as client:
        first = await client.post(PATH, content=b"{}")
        second = await client.post(PATH, content=b"{}")
    assert (first.status_code, len(first.content)) == (200, 300)
    assert second.status_code == 409
    assert answers.num_bytes == 0


async def test_the_same_key_of_another_tenant_is_another(store: Store) -> None:
    """Tenants can neither see nor block each other's requests by guessing keys."""
    endpoint = Endpoint()
    async with served(store, endpoint) as client:
        await client.post(PATH, content=b"{}")
        other = {"authorization": "Bearer globex"}
        theirs = await client.post(PATH, content=b"{other}", headers=other)
    assert "idempotent-replayed" not in theirs.headers
    assert endpoint.bodies == [b"{}", b"{other}"]


@pytest.mark.parametrize("key", ["", "a\x7fb", "é", "k" * 256, "tab\there"])
async def test_a_key_that_cannot_be_one_is_refused(store: Store, key: str) -> None:
    """Keys are 1 to 255 printable ASCII characters."""
    endpoint = Endpoint()
    async with served(store, endpoint) as client:
        response = await client.post(
            PATH, content=b"{}", headers={"idempotency-key": key.encode("latin-1")}
        )
        assert code_of(response) == (400, "invalid_idempotency_key")
        twice = [("idempotency-key", "a"), ("idempotency-key", "a")]
        assert code_of(await client.post(PATH, content=b"{}", headers=twice))[0] == 400
        longest = {"idempotency-key": "k" * 255}
        assert (await client.post(PATH, content=b"{}", headers=longest)).status_code == 200
    assert len(endpoint.bodies) == 1


class Away(SqlIdempotency):
    """Be out of reach while `is_away`."""

    is_away = True

    async def claim(self, *args: Any, **kwargs: Any) -> Any:
        if self.is_away:
            raise StoreUnavailable
        return await super().claim(*args, **kwargs)

    async def save(self, *args: Any) -> bool:
        if self.is_away:
            raise StoreUnavailable
        return await super().save(*args)


async def test_without_the_store_keyed_requests_alone_are_refused(store: Store) -> None:
    """What cannot be kept once is not begun; requests without a key are served."""
    endpoint = Endpoint()
    away = IdempotencyService(Away(store.database), SECRETS)
    async with served(store, endpoint, away) as client:
        assert code_of(await client.post(PATH, content=b"{}")) == (503, "store_unavailable")
        del client.headers["idempotency-key"]
        assert (await client.post(PATH, content=b"{}")).status_code == 200
    assert len(endpoint.bodies) == 1


async def test_an_answer_outlives_a_short_absence_of_the_store(store: Store) -> None:
    """The store goes while a request runs and comes back: the answer is kept all the same."""
    endpoint, sql = Endpoint(), Away(store.database)
    sql.is_away = False
    endpoint.gate.clear()
    async with served(store, endpoint, IdempotencyService(sql, SECRETS)) as client:
        first = asyncio.create_task(client.post(PATH, content=b"{}"))
        await endpoint.began.wait()
        sql.is_away = True
        endpoint.gate.set()
        await asyncio.sleep(0.05)
        sql.is_away = False
        assert (await first).status_code == 200
        again = await client.post(PATH, content=b"{}")
    assert again.headers["idempotent-replayed"] == "true"


@pytest.mark.parametrize("stream", [False, True])
async def test_the_real_endpoint_generates_once(
    store: Store, paced_model: ServedModel, stream: bool
) -> None:
    """Through the whole public API: one id, one generation, the same bytes twice."""
    service = IdempotencyService(store.idempotency, SECRETS)
    inference = InferenceService(salt_key=b"salt" * 8, pool=FairPool())

    def app_of(leases: LeasedInference) -> ASGIApp:
        return public_app(
            models=ModelRegistry([paced_model]),
            inference=leases,
            overload=OverloadWatch({}, memory_share=lambda: 0.0),
            auth=Keys(store),
            health=serving_health([paced_model]),
            version="test",
            idempotency=service,
        )

    chat = {
        "model": "sim",
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 8,
        "stream": stream,
    }
    text_request = {"model": "sim", "prompt": "Hi", "max_tokens": 8, "stream": stream}
    async with (
        leased(inference) as leases,
        service.running(),
        client_of(server := WritesNow(app_of(leases))) as client,
    ):
        first = await client.post(PATH, json=chat)
        second = await client.post(PATH, json=chat)
        assert first.status_code == second.status_code == 200, first.text
        assert first.content == second.content
        # The other endpoint is another request, whatever the body.
        mixed = await client.post("/v1/completions", json=chat)
        assert code_of(mixed) == (422, "idempotency_mismatch")
        client.headers["idempotency-key"] = "order-2"
        answers = [await client.post("/v1/completions", json=text_request) for _ in range(2)]
        assert answers[0].content == answers[1].content
        assert answers[1].headers["idempotent-replayed"] == "true"
        # Or it would not be in what is kept.
        assert server.num_written == 0
        del client.headers["idempotency-key"]
        assert (await client.post(PATH, json=chat | {"max_tokens": 48})).status_code == 200
        assert (server.num_written > 0) == stream
    inference.pool.close()


async def until(
    client: httpx.AsyncClient, done: Callable[[httpx.Response], bool]
) -> httpx.Response:
    """Retry as an SDK does, only sooner."""
    while True:
        response = await client.post(PATH, content=b"{}")
        if done(response):
            return response
        await asyncio.sleep(0.01)


async def num_records(store: Store, *where: Any) -> int:
    query = select(func.count()).select_from(idempotency).where(*where)
    async with store.database.platform() as connection:
        return int((await connection.execute(query)).scalar_one())
