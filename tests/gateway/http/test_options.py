"""A port as it is configured: behind proxies, and with a certificate."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from ipaddress import ip_network
from pathlib import Path

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from gateway.app.serving import listening
from gateway.http.open_files import Room
from gateway.http.options import HttpOptions
from gateway.http.server import ApiServer
from gateway.settings import Settings

pytestmark = pytest.mark.anyio

LOCALHOST = Path(__file__).parent / "localhost"


async def who(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the client's address and the scheme."""
    body = f"{scope['client'][0]} {scope['scheme']}".encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


@contextlib.asynccontextmanager
async def served(options: HttpOptions) -> AsyncIterator[int]:
    """Serve `who` and yield the port."""
    with listening("127.0.0.1", 0) as listener:
        server = ApiServer(who, options)
        running = asyncio.create_task(server.serve([listener]))
        await server.wait_started()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await running


async def ask(port: int, forwarded_for: str) -> str:
    async with httpx.AsyncClient() as client:
        answer = await client.get(
            f"http://127.0.0.1:{port}/", headers={"x-forwarded-for": forwarded_for}
        )
        return answer.text


async def test_nobody_is_believed_who_is_no_proxy() -> None:
    """Unless it is named, even a neighbour on this machine cannot choose its address."""
    async with served(HttpOptions()) as port:
        assert await ask(port, "203.0.113.9") == "127.0.0.1 http"


async def test_a_trusted_proxy_says_whom_it_speaks_for() -> None:
    """The last address that is no trusted proxy's is the client's, whatever it claimed before."""
    trusted = (ip_network("127.0.0.0/8"), ip_network("10.0.0.0/8"))
    async with served(HttpOptions(trusted_proxies=trusted)) as port:
        assert await ask(port, "203.0.113.9") == "203.0.113.9 http"
        assert await ask(port, "1.2.3.4, 203.0.113.9, 10.0.0.7") == "203.0.113.9 http"


async def test_a_certificate_makes_it_https() -> None:
    """Clients that trust the certificate are served, and plain HTTP is not."""
    options = HttpOptions(tls_cert=LOCALHOST / "cert.pem", tls_key=LOCALHOST / "key.pem")
    trust = ssl.create_default_context(cafile=LOCALHOST / "cert.pem")
    async with served(options) as port:
        async with httpx.AsyncClient(verify=trust) as client:
            assert (await client.get(f"https://localhost:{port}/")).text == "127.0.0.1 https"
        with pytest.raises(httpx.TransportError):
            await ask(port, "")


def test_a_port_takes_what_there_is_room_for() -> None:
    """Each port's bound is its share of the files, not what was wished for."""
    room = Room(public=576, admin=192, max_files=1024)
    settings = Settings(max_connections=4096, max_connections_per_address=7)
    public, admin = (
        HttpOptions.of(settings, room).limits,
        HttpOptions.of_admin(settings, room).limits,
    )
    assert (public.max_connections, public.max_connections_per_address) == (576, 7)
    assert admin.max_connections == 192
