"""Probes over HTTP, and the front that answers before and after the application does."""

from __future__ import annotations

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from gateway.api.front import Front
from gateway.api.health import DetailedHealth, Health
from gateway.services.health.heartbeat import Heartbeat
from gateway.services.health.lifecycle import Lifecycle, Phase
from gateway.services.health.probes import Probes

pytestmark = pytest.mark.anyio


def client_of(front: Front) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(front), base_url="http://test")


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@pytest.fixture
def probes() -> Probes:
    return Probes(Lifecycle(), Heartbeat())


async def test_a_starting_process_answers_probes_alone(probes: Probes) -> None:
    """Before the application is there, probes are answered and all else is a 503 to retry."""
    async with client_of(Front(Health(probes))) as client:
        assert (await client.get("/livez")).text == "ok\n"
        assert (await client.get("/readyz")).text == "starting\n"
        with probes.lifecycle.starting("model"):
            startup = await client.get("/startupz")
        assert (startup.status_code, startup.text) == (503, "model\n")
        for method, path in (("GET", "/"), ("POST", "/v1/chat/completions"), ("PUT", "/x/y")):
            early = await client.request(method, path)
            assert early.status_code == 503
            assert early.json()["error"]["code"] == "starting"
            assert int(early.headers["retry-after"]) >= 1
            assert early.headers["x-request-id"]


async def test_a_process_on_its_way_out_refuses_work(probes: Probes) -> None:
    """Once it refuses, probes are answered, all else is a 503, and connections close."""
    front = Front(Health(probes))
    front.app = application
    async with client_of(front) as client:
        served = await client.post("/anything")
        assert served.status_code == 204
        assert "connection" not in served.headers
        front.closing = True
        assert (await client.post("/anything")).headers["connection"] == "close"
        front.refuse()
        refused = await client.post("/anything")
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "shutting_down"
        assert refused.headers["connection"] == "close"
        assert (await client.get("/livez")).status_code == 200
    assert front.num_requests == 0


async def test_requests_under_way_are_counted(probes: Probes) -> None:
    """A request counts from its head to its end, a failure included."""
    front = Front(Health(probes))
    seen: list[int] = []

    async def failing(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(front.num_requests)
        raise ZeroDivisionError

    front.app = failing
    async with client_of(front) as client:
        with pytest.raises(ZeroDivisionError):
            await client.get("/")
    assert (seen, front.num_requests) == ([1], 0)


async def test_detail_names_every_part(probes: Probes) -> None:
    """The detailed answer lists the parts, each with its state."""
    probes.lifecycle.advance(Phase.SERVING)
    async with client_of(Front(DetailedHealth(probes))) as client:
        answer = await client.get("/livez")
    assert answer.status_code == 200
    assert answer.json()["status"] == "ok"
    [loop] = answer.json()["parts"]
    assert (loop["name"], loop["ok"]) == ("loop", True)
