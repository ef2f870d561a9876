"""Every route of both ports, whoever declares it: who may come in, and what a stranger is told."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from admin_ui.app import UiRoute
from admin_ui.screens import OfRoles
from gateway.api.access import TenantOnly
from gateway.api.admin.routing import AdminOnly
from gateway.settings import Settings
from tests.gateway.api.real_gateway import RealGateway, real_gateway
from tests.gateway.conftest import (
    database_url,
    databases,
    own_store,
    redis_url,
    servers,
    settings,
    shared_store,
    started,
    store,
)

__all__ = [
    "database_url",
    "databases",
    "own_store",
    "redis_url",
    "servers",
    "settings",
    "shared_store",
    "started",
    "store",
]

pytestmark = pytest.mark.anyio

GOLDEN = Path(__file__).with_name("routes.golden")
PORTS = ("public", "admin")
# What is tried on databases: ends of strings, comments, stacked statements, waits, wide bytes.
SQL = (
    "' OR '1'='1",
    "'; DROP TABLE keys; --",
    '" OR ""="',
    "1); SELECT pg_sleep(5)--",
    "\\'; SELECT 1 --",
    "%27%20OR%201=1",
    "$$; SELECT current_user; $$",
    "' UNION SELECT mac FROM key_secrets--",
    "{{7*7}}",
    "\u02bc OR 1=1",
)


@pytest.fixture
async def real(settings: Settings) -> AsyncIterator[RealGateway]:
    async with real_gateway(settings) as running:
        yield running


def served(app: Any) -> Iterator[tuple[str, Route]]:
    """Go through all routes of a port, however deep they are wrapped. A route that this does not
    know how to look into fails."""
    while not isinstance(app, Starlette):
        app = app._app
    for route in app.routes:
        if isinstance(route, UiRoute):
            yield from served(route.app)
            continue
        assert isinstance(route, Route), f"what is a {type(route).__name__} open to?"
        for method in sorted((route.methods or set()) - {"HEAD"}):
            yield method, route


def who(route: Route) -> str:
    """Say who may come in, as the route declares it."""
    if isinstance(route.app, TenantOnly):
        return "key"
    if isinstance(route.app, AdminOnly | OfRoles):
        return " ".join(sorted(role.value for role in route.app.allows))
    return "anybody"


def spelled(path: str, word: str) -> str:
    """Write a path with a word in each of its places."""
    parts = ["" if part.startswith("{") else part for part in path.split("/")]
    return "/".join([parts[0], *(part or word for part in parts[1:])]) if path != "/" else path


def line(port: str, method: str, route: Route) -> str:
    return f"{port:6} {method:6} {route.path:52} {who(route)}".rstrip()


def of_port(real: RealGateway, port: str, address: str) -> httpx.AsyncClient:
    app = getattr(real.gateway, port)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=(address, 1))
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8001")


async def test_unauthenticated_side_routes(real: RealGateway) -> None:
    """The golden file has every route of both ports with who may come in, pages and probes too;
    and a stranger is refused by all that are not open to anybody."""
    lines, number = [], 0
    for port in PORTS:
        for method, route in served(getattr(real.gateway, port)):
            lines.append(line(port, method, route))
            number += 1
            async with of_port(real, port, f"10.1.{number // 250}.{number % 250}") as stranger:
                answer = await stranger.request(method, spelled(route.path, "x"), content=b"{")
            is_page = isinstance(route.app, OfRoles)
            refused = answer.status_code == 401 or (is_page and answer.status_code in (303, 403))
            if is_page and answer.status_code == 303:
                assert answer.headers["location"].startswith(("/admin/login", "/portal/login"))
            assert refused or who(route) == "anybody", (lines[-1], answer.status_code)
    assert sorted(lines) == GOLDEN.read_text().splitlines()


async def test_sql_before_the_key_is_known(real: RealGateway) -> None:
    """Words that end a statement are no key, no id and no parameter on any route: nothing takes
    them for more, on the way of an error either, and nothing is slower or gone for it."""
    number = 0
    for word in SQL:
        for port in PORTS:
            for method, route in list(served(getattr(real.gateway, port)))[number % 7 :: 7]:
                number += 1
                address = f"10.2.{number // 250}.{number % 250}"
                sent = word.encode()
                headers = {b"authorization": b"Bearer " + sent, b"cookie": b"a=" + sent}
                headers |= {b"idempotency-key": sent, b"x-forwarded-for": sent}
                path = spelled(route.path, httpx.URL("", params={"w": word}).query.decode()[2:])
                async with of_port(real, port, address) as stranger:
                    async with asyncio.timeout(4):
                        answer = await stranger.request(
                            method, path, params={"after": word, "limit": word}, headers=headers
                        )
                # A probe says 503 where nothing runs.
                assert answer.status_code != 500, (word, path, answer.text)
                assert not any(leak in answer.text for leak in ("asyncpg", "SELECT ", "syntax"))
    # Who may come in is bound the same way.
    for word in SQL:
        for path in ("/tenants", "/keys", "/audit", "/requests", "/usage"):
            for param in ("after", "tenant", "from", "actor"):
                answer = await real.owner.get(f"/admin/v1{path}", params={param: word})
                assert answer.status_code in (200, 400, 404), (path, param, word, answer.text)
    assert (await real.owner.get("/admin/v1/keys")).json()["data"]


async def test_ids_of_a_caller_are_labels(real: RealGateway) -> None:
    """Two tenants that send the same ids at once get answers of their own, under ids of ours."""
    assert real.gateway.first_start is not None
    keys = [issued.token for issued in real.gateway.first_start.keys]
    same = {"x-request-id": "req_" + "0" * 32, "idempotency-key": "same"}

    async def ask(key: str, prompt: str) -> httpx.Response:
        body = {"model": "sluice-demo", "prompt": prompt, "max_tokens": 2, "user": "same"}
        async with of_port(real, "public", "10.3.0.1") as client:
            head = {"authorization": f"Bearer {key}", **same}
            return await client.post("/v1/completions", json=body, headers=head)

    answers = await asyncio.gather(*(ask(key, f"of {at}") for at, key in enumerate(keys)))
    assert [answer.status_code for answer in answers] == [200, 200]
    ids = {answer.headers["x-request-id"] for answer in answers}
    assert len(ids) == 2
    assert same["x-request-id"] not in ids
    assert len({answer.json()["id"] for answer in answers}) == 2
    assert not any("idempotent-replayed" in answer.headers for answer in answers)


async def test_no_request_makes_us_call_anybody(real: RealGateway) -> None:
    """An address in whatever field of a request, nested or not, is a text: nobody connects."""
    assert real.gateway.first_start is not None
    key = real.gateway.first_start.keys[0].token
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/canary"
        image = [{"type": "image_url", "image_url": {"url": url}}]
        message = [{"role": "user", "content": url}]
        bodies: list[tuple[str, dict[str, Any]]] = [
            ("/v1/completions", {"prompt": url, "suffix": url, "user": url}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": image}]}),
            ("/v1/chat/completions", {"messages": message, "metadata": {"callback": url}}),
            ("/v1/chat/completions", {"messages": message, "api_base": url, "base_url": url}),
            ("/v1/chat/completions", {"messages": message, "tools": [{"type": url}]}),
            (
                "/v1/chat/completions",
                {
                    "messages": message,
                    "response_format": {
                        "type": "json_schema",
                        "json_schema": {"name": "a", "schema": {"$ref": url}},
                    },
                },
            ),
            ("/v1/responses", {"input": [{"role": "user", "content": image}]}),
            ("/v1/responses", {"input": url, "tools": [{"type": "mcp", "server_url": url}]}),
            ("/v1/messages", {"messages": message, "max_tokens": 1, "mcp_servers": [url]}),
            ("/v1/embeddings", {"input": url}),
            ("/v1/batches", {"input_file_id": url, "endpoint": url, "metadata": {"a": url}}),
        ]
        async with of_port(real, "public", "10.4.0.1") as client:
            for path, body in bodies:
                head = {"authorization": f"Bearer {key}"}
                sent = {"model": "sluice-demo", "max_tokens": 1} | body
                answer = await client.post(path, json=sent, headers=head)
                assert answer.status_code < 500, answer.text
                named = await client.post(path, json=sent | {"model": url}, headers=head)
                assert named.status_code in (400, 404)
        with pytest.raises(BlockingIOError):
            listener.accept()
