"""Delivery of threshold events to a real HTTP server, from a real PostgreSQL."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from uuid import UUID

import pytest
import standardwebhooks
from sqlalchemy import func, select, update

from gateway.domain.quota import Metric, Scope, ScopeKind
from gateway.services.quotas.public_address import Address
from gateway.services.quotas.thresholds import Thresholds
from gateway.services.quotas.webhook import DeliveryFailed, Webhook, WebhookDelivery
from gateway.store import Store
from gateway.store.tables import quota_events
from tests.gateway.webhook_receiver import SECRET, Receiver, here, receiving

pytestmark = pytest.mark.anyio

JANUARY = 1_767_225_600


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


def webhook(receiver: Receiver, *, allow_private: bool = True) -> Webhook:
    url = f"http://hooks.example:{receiver.port}/in?team=1"
    return Webhook(url, SECRET, allow_private=allow_private, resolve=here)


async def raise_event(store: Store, window_start_s: int = JANUARY, of: int = 0) -> None:
    assert store.first_start is not None
    tenant_id: UUID = store.first_start.keys[of].key.tenant_id
    thresholds = Thresholds(store.quota_events, (80,), is_delivered=True)
    scope = Scope(ScopeKind.TENANT, tenant_id)
    thresholds.note(scope, tenant_id, Metric.BUDGET, window_start_s, 850, 1000)
    await thresholds.write()


async def states(store: Store) -> list[tuple[int, bool, bool]]:
    """Return of each event: attempts, whether it is delivered, whether one more will be made."""
    row = quota_events.c
    query = select(row.attempts, row.delivered_at.is_not(None), row.next_attempt_at.is_not(None))
    async with store.database.platform() as connection:
        return [tuple(found) for found in await connection.execute(query)]


async def make_due(store: Store) -> None:
    async with store.database.platform() as connection:
        await connection.execute(update(quota_events).values(next_attempt_at=func.now()))


async def test_an_event_is_posted_signed(store: Store, receiver: Receiver) -> None:
    """The receiver verifies it with the standard's own library and reads what happened."""
    await raise_event(store)
    delivery = WebhookDelivery(store.quota_events, webhook(receiver))
    assert await delivery.deliver_due() == 1
    [(line, headers, body)] = receiver.posts
    assert line == "POST /in?team=1 HTTP/1.1"
    assert headers["host"] == f"hooks.example:{receiver.port}"
    document = standardwebhooks.Webhook(SECRET).verify(body, headers)
    assert document["type"] == "quota.threshold"
    data = document["data"]
    assert data.pop("scope")["kind"] == "tenant"
    assert data == {
        "tenant": "acme",
        "metric": "budget_nano_usd",
        "percent": 80,
        "used": 850,
        "amount": 1000,
        "window_start": "2026-01-01T00:00:00Z",
    }
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        standardwebhooks.Webhook(SECRET).verify(body.replace("850", "85"), headers)
    assert await states(store) == [(1, True, False)]
    assert await delivery.deliver_due() == 0


async def test_a_failure_is_tried_again_under_the_same_id(store: Store, receiver: Receiver) -> None:
    """A 500 is waited out; the receiver can tell by the id that it is the same event."""
    receiver.answers = ["500 Internal Server Error\r\n"]
    await raise_event(store)
    delivery = WebhookDelivery(store.quota_events, webhook(receiver))
    await delivery.deliver_due()
    assert await states(store) == [(1, False, True)]
    assert await delivery.deliver_due() == 0
    await make_due(store)
    await delivery.deliver_due()
    assert await states(store) == [(2, True, False)]
    [first, second] = receiver.posts
    assert first[1]["webhook-id"] == second[1]["webhook-id"]
    assert first[2] == second[2]


async def test_eight_failures_are_the_end(store: Store, receiver: Receiver) -> None:
    """A receiver that never takes an event is not asked for ever."""
    receiver.answers = ["503 No\r\n"] * 9
    await raise_event(store)
    delivery = WebhookDelivery(store.quota_events, webhook(receiver))
    for attempt in range(1, 9):
        await make_due(store)
        await delivery.deliver_due()
        assert await states(store) == [(attempt, False, attempt < 8)]
    assert len(receiver.posts) == 8


async def test_a_redirect_is_not_followed(receiver: Receiver) -> None:
    """Where the operator's URL points is where it goes, or nowhere."""
    inside = f"http://127.0.0.1:{receiver.port}/metadata"
    receiver.answers = [f"307 Temporary Redirect\r\nlocation: {inside}\r\n"]
    with pytest.raises(DeliveryFailed, match="307"):
        await webhook(receiver).post("id", "{}")
    assert len(receiver.posts) == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "localhost"])
async def test_private_addresses_are_refused_unless_allowed(receiver: Receiver, host: str) -> None:
    """By default nothing inside is reached, however it is spelled or named."""
    url = f"http://{host}:{receiver.port}/"
    with pytest.raises(DeliveryFailed, match="not a public address"):
        await Webhook(url, SECRET).post("id", "{}")
    assert receiver.posts == []
    if host != "[::1]":
        await Webhook(url, SECRET, allow_private=True).post("id", "{}")
        assert len(receiver.posts) == 1


async def test_a_name_is_resolved_once(receiver: Receiver) -> None:
    """The address that was checked is the one connected to: a second answer changes nothing."""
    answers = ["127.0.0.1", "203.0.113.1"]

    async def rebinding(host: str, port: int) -> Sequence[Address]:
        return [ip_address(answers.pop(0))]

    url = f"http://hooks.example:{receiver.port}/"
    await Webhook(url, SECRET, allow_private=True, resolve=rebinding).post("id", "{}")
    assert answers == ["203.0.113.1"]
    assert len(receiver.posts) == 1


@pytest.mark.parametrize(
    ("head", "endless", "outcome"),
    [
        ("HTTP/1.1 200 OK\r\n\r\n", "x" * 65536, None),
        ("HTTP/1.1 200 OK\r\n", "a: b\r\n" * 8192, "too long"),
        ("HTTP/1.1 200 OK\r\n", "x" * 65536, "too long"),
        ("", "HTTP/1.1 100 Continue\r\n\r\n" * 2048, "no answer"),
        ("HTTP/1.1 200 OK\r\n", "", "no answer"),
    ],
    ids=["body", "headers", "line", "interim", "silence"],
)
async def test_an_endless_answer_holds_neither_memory_nor_time(
    head: str, endless: str, outcome: str | None
) -> None:
    """It is left after its status, at the bound of its head, or in time; on a thread of its own."""
    num_sent = 0

    def answer() -> None:
        nonlocal num_sent
        connection, _ = listening.accept()
        with connection, contextlib.suppress(OSError):
            connection.recv(65536)
            connection.sendall(head.encode())
            while endless:
                connection.sendall(endless.encode())
                num_sent += len(endless)
            while connection.recv(65536):
                pass

    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = asyncio.create_task(asyncio.to_thread(answer))
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        hook = Webhook(url, SECRET, allow_private=True, timeout_s=0.6)
        computed_s = time.thread_time()
        if outcome is None:
            await hook.post("id", "{}")
        else:
            with pytest.raises(DeliveryFailed, match=outcome):
                await hook.post("id", "{}")
        assert time.thread_time() - computed_s < 0.1
        await server
    assert outcome == "no answer" or num_sent < 64 << 20


async def test_receivers_that_hang_hold_no_thread_of_others() -> None:
    """The journal's sync and a request's hash find a thread, however many posts and names hang."""
    others = ThreadPoolExecutor(1)
    asyncio.get_running_loop().set_default_executor(others)
    never = threading.Event()

    async def hanging(host: str, port: int) -> Sequence[Address]:
        return await asyncio.to_thread(never.wait, 1) or []

    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(5)
        port = silent.getsockname()[1]
        hooks = [
            Webhook(f"http://127.0.0.1:{port}/", SECRET, allow_private=True, timeout_s=0.5),
            Webhook("http://hooks.example/", SECRET, resolve=hanging, timeout_s=0.5),
        ]
        posts = [asyncio.create_task(hook.post("id", "{}")) for hook in hooks * 4]
        accepted, _ = await asyncio.to_thread(silent.accept)
        assert not any(post.done() for post in posts)
        outcomes = await asyncio.gather(*posts, return_exceptions=True)
        accepted.close()
        never.set()
    assert {str(outcome) for outcome in outcomes} == {"no answer within 0.5 s"}


async def test_nobody_there_is_a_failure(receiver: Receiver) -> None:
    """A connection refused, or TLS to a server that speaks none, is tried again later."""
    with pytest.raises(DeliveryFailed, match="Connect"):
        await Webhook("http://127.0.0.1:1/", SECRET, allow_private=True).post("id", "{}")
    https = Webhook(f"https://127.0.0.1:{receiver.port}/", SECRET, allow_private=True)
    with pytest.raises(DeliveryFailed):
        await https.post("id", "{}")


async def test_gateways_deliver_it_together_once(store: Store, receiver: Receiver) -> None:
    """Two gateways that look at the same moment send each event once between them."""
    for number in range(6):
        await raise_event(store, JANUARY + number)
    deliveries = [WebhookDelivery(store.quota_events, webhook(receiver)) for _ in range(2)]
    counts = await asyncio.gather(*(delivery.deliver_due() for delivery in deliveries))
    assert sum(counts) == 6
    assert len({headers["webhook-id"] for _, headers, _ in receiver.posts}) == 6
    assert len(receiver.posts) == 6
    assert json.loads(receiver.posts[0][2])["type"] == "quota.threshold"


async def test_who_comes_late_takes_no_delivery_back(store: Store, receiver: Receiver) -> None:
    """A gateway that was frozen beyond its lease fails with what another delivered meanwhile."""
    await raise_event(store)
    [frozen] = await store.quota_events.claim_due(1, lease_s=0.0)
    await WebhookDelivery(store.quota_events, webhook(receiver)).deliver_due()
    await store.quota_events.failed(frozen.event.id, retry_in_s=0.0)
    assert await states(store) == [(2, True, False)]
    assert await WebhookDelivery(store.quota_events, webhook(receiver)).deliver_due() == 0
    assert len(receiver.posts) == 1


async def test_tenants_take_turns(store: Store, receiver: Receiver) -> None:
    """The one event of a tenant does not wait behind all that another's keys have raised."""
    for number in range(20):
        await raise_event(store, JANUARY + number)
    await raise_event(store, of=1)
    await raise_event(store, JANUARY + 1, of=1)
    assert await WebhookDelivery(store.quota_events, webhook(receiver)).deliver_due() == 8
    data = [json.loads(body)["data"] for _, _, body in receiver.posts]
    starts: dict[str, set[str]] = {"acme": set(), "globex": set()}
    for one in data:
        starts[one["tenant"]].add(one["window_start"][17:19])
    assert starts == {"acme": {f"0{n}" for n in range(6)}, "globex": {"00", "01"}}


async def test_delivery_runs_in_the_background(store: Store, receiver: Receiver) -> None:
    """What is raised reaches the receiver without anybody asking."""
    delivery = WebhookDelivery(store.quota_events, webhook(receiver))
    await raise_event(store)
    async with delivery.running():
        while await states(store) != [(1, True, False)]:
            await asyncio.sleep(0.01)
    assert len(receiver.posts) == 1
