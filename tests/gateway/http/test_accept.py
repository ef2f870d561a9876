"""Connections as they are accepted: counted before their handshake, and never in a busy circle."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from starlette.types import Receive, Scope, Send

from gateway.app.serving import listening
from gateway.http.limits import HttpLimits
from gateway.http.options import HttpOptions
from gateway.http.server import ApiServer

pytestmark = pytest.mark.anyio

LOCALHOST = Path(__file__).parent / "localhost"
TLS = HttpOptions(tls_cert=LOCALHOST / "cert.pem", tls_key=LOCALHOST / "key.pem")
TRUST = ssl.create_default_context(cafile=LOCALHOST / "cert.pem")
LIMITS = HttpLimits(
    handshake_s=30, header_timeout_s=30, max_connections=8, max_connections_per_address=4
)
REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
# The first bytes of a handshake, whose rest does not come.
HALF_HELLO = b"\x16\x03\x01\x02\x00\x01\x00"


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Run each test on both event loops: they accept, and shake hands, by code of their own."""
    return "asyncio", {"use_uvloop": request.param}


@dataclass
class Crowd:
    """Clients on bare sockets; `num_open` of them the server holds on to."""

    port: int
    sockets: list[socket.socket] = field(default_factory=list)

    async def connect(self, count: int, address: str = "127.0.0.1", first: bytes = b"") -> None:
        for _ in range(count):
            sock = socket.socket()
            self.sockets.append(sock)
            sock.bind((address, 0))
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
            with contextlib.suppress(OSError):
                sock.send(first)

    @property
    def num_open(self) -> int:
        return sum(map(_is_open, self.sockets))

    async def shrinks_to(self, count: int) -> bool:
        """Wait until as many are left; tell whether as many still are after a moment."""
        async with asyncio.timeout(5):
            while self.num_open > count:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        return self.num_open == count


async def ok(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})


@contextlib.asynccontextmanager
async def crowded(
    options: HttpOptions, limits: HttpLimits = LIMITS
) -> AsyncIterator[tuple[ApiServer, Crowd]]:
    """Serve within limits, to a crowd that leaves at the end."""
    with listening("127.0.0.1", 0) as listener:
        server = ApiServer(ok, replace(options, limits=limits))
        running = asyncio.create_task(server.serve([listener]))
        await server.wait_started()
        crowd = Crowd(listener.getsockname()[1])
        try:
            yield server, crowd
        finally:
            server.should_exit = server.force_exit = True
            await running
            for sock in crowd.sockets:
                sock.close()


async def emptied(server: ApiServer) -> None:
    """Wait until the server counts no connection."""
    async with asyncio.timeout(5):
        while server.connections.num_open:
            await asyncio.sleep(0.01)


async def ask(port: int, options: HttpOptions, address: str = "127.0.0.2") -> bytes:
    """Send a request from an address; return all that comes, b"" from who closes at once."""
    kinds = {"ssl": TRUST, "server_hostname": "localhost"} if options is TLS else {}
    async with asyncio.timeout(5):
        try:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, local_addr=(address, 0), **kinds
            )
            writer.write(REQUEST.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
            answer = await reader.read()
            writer.close()
        except ConnectionError:
            return b""
    return answer


@pytest.mark.parametrize("options", [HttpOptions(), TLS], ids=["plain", "tls"])
async def test_who_sends_nothing_is_counted_at_once(options: HttpOptions) -> None:
    """One address holds as many sockets as it may, not a byte sent, and others are served."""
    async with crowded(options) as (server, crowd):
        await crowd.connect(20)
        assert await crowd.shrinks_to(4)
        assert server.connections.num_open == 4
        assert (await ask(crowd.port, options)).startswith(b"HTTP/1.1 200")
        refused = await ask(crowd.port, options, "127.0.0.1")
        assert (b'"too_many_connections"' in refused) is (options is not TLS)
        assert b"200 OK" not in refused


@pytest.mark.parametrize("options", [HttpOptions(), TLS], ids=["plain", "tls"])
async def test_all_addresses_together_are_bounded(options: HttpOptions) -> None:
    """Of three addresses that may hold four each, eight connections are held."""
    async with crowded(options) as (server, crowd):
        for number in (1, 2, 3):
            await crowd.connect(4, f"127.0.0.{number}")
        assert await crowd.shrinks_to(8)
        assert server.connections.num_open == 8


@pytest.mark.parametrize("first", [b"", HALF_HELLO, REQUEST], ids=["silence", "half", "plain"])
async def test_a_handshake_that_does_not_end_is_ended(first: bytes) -> None:
    """Within its time the socket is closed and its place is free, be it silent, slow or no TLS."""
    async with crowded(TLS, replace(LIMITS, handshake_s=0.3)) as (server, crowd):
        await crowd.connect(4, first=first)
        async with asyncio.timeout(5):
            while crowd.num_open:
                await asyncio.sleep(0.05)
                for sock in crowd.sockets:
                    # A byte now and then prolongs nothing.
                    with contextlib.suppress(OSError):
                        sock.send(b"\0" if first == HALF_HELLO else b"")
        await emptied(server)
        assert (await ask(crowd.port, TLS, "127.0.0.1")).startswith(b"HTTP/1.1 200")


async def test_who_leaves_in_a_handshake_leaves_its_place() -> None:
    """A client that goes, politely or not, is forgotten at once; so is one that was served."""
    async with crowded(TLS) as (server, crowd):
        await crowd.connect(4, first=HALF_HELLO)
        assert await crowd.shrinks_to(4)
        for number, sock in enumerate(crowd.sockets):
            if number % 2:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            sock.close()
        await emptied(server)
        assert (await ask(crowd.port, TLS, "127.0.0.1")).startswith(b"HTTP/1.1 200")
        await emptied(server)


async def test_a_shutdown_waits_for_no_handshake(caplog: pytest.LogCaptureFixture) -> None:
    """A server that ends cuts off who has not shaken hands, and need not give up waiting."""
    async with crowded(TLS) as (server, crowd):
        await crowd.connect(3)
        assert await crowd.shrinks_to(3)
        assert server.connections.num_open == 3
    assert server.connections.num_open == 0
    assert caplog.records == []


@contextlib.contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Let this process open nothing more while the block runs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_process_without_descriptors_waits(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tries again now and then, says so in one line, and serves who waits once it can."""
    calls = []
    accept = socket.socket.accept
    monkeypatch.setattr(socket.socket, "accept", lambda sock: calls.append(sock) or accept(sock))
    async with crowded(HttpOptions()) as (_, crowd):
        waiting = socket.socket()
        crowd.sockets.append(waiting)
        with caplog.at_level(logging.ERROR), no_descriptor_left():
            # The kernel takes it, and the server cannot.
            waiting.connect(("127.0.0.1", crowd.port))
            await asyncio.sleep(0.45)
        assert 2 <= len(calls) <= 6
        assert [record.name for record in caplog.records] == ["gateway.http.accept"]
        waiting.sendall(REQUEST)
        waiting.setblocking(False)
        async with asyncio.timeout(5):
            answer = await asyncio.get_running_loop().sock_recv(waiting, 100)
        assert answer.startswith(b"HTTP/1.1 200")


def _is_open(sock: socket.socket) -> bool:
    try:
        while sock.recv(1 << 16):
            pass
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
