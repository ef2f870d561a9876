"""A burst of one address is spread over turns of the event loop, and others go between."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from starlette.types import Receive, Scope, Send

from gateway.http.fair_turns import PER_TURN, FairTurns
from gateway.http.limits import HttpLimits
from gateway.http.options import HttpOptions
from gateway.http.small_reads import READ_BYTES
from tests.guarded_server import serve_guarded

pytestmark = pytest.mark.anyio

NUM_CLIENTS = 60
MANY, ONE = "127.0.0.2", "127.0.0.3"
LOCALHOST = Path(__file__).parent / "localhost"
TLS = HttpOptions(tls_cert=LOCALHOST / "cert.pem", tls_key=LOCALHOST / "key.pem")
TRUST = ssl.create_default_context(cafile=LOCALHOST / "cert.pem")
HEAD = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Run each test on both event loops: they read by code of their own."""
    return "asyncio", {"use_uvloop": request.param}


class Turns:
    """Count the turns of the running loop."""

    def __init__(self) -> None:
        self.number = 0
        self._loop = asyncio.get_running_loop()
        self._next = self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self.number += 1
        self._next = self._loop.call_soon(self._turn)

    def stop(self) -> None:
        self._next.cancel()


@pytest.fixture
async def turns() -> AsyncIterator[Turns]:
    counted = Turns()
    yield counted
    counted.stop()


async def test_things_beyond_a_turn_s_number_are_done_in_later_ones(turns: Turns) -> None:
    """Of ten things at once, three a turn, each turn does three in their order."""
    fair, done = FairTurns(per_turn=3), list[tuple[int, int]]()

    def note(number: int) -> None:
        done.append((number, turns.number))

    for number in range(10):
        fair.do(MANY, partial(note, number))
    while len(done) < 10:
        await asyncio.sleep(0)
    assert [number for number, _ in done] == list(range(10))
    assert list(Counter(turn for _, turn in done).values()) == [3, 3, 3, 1]


async def test_addresses_take_turns() -> None:
    """One thing of a second address is not behind all of the first's."""
    fair, done = FairTurns(per_turn=2), list[str]()
    for address in (*[MANY] * 9, ONE):
        fair.do(address, partial(done.append, address))
    while len(done) < 10:
        await asyncio.sleep(0)
    assert done.index(ONE) == 3


async def test_who_fails_does_not_keep_the_others_back() -> None:
    """What waits behind a thing that raises is done."""
    fair, done = FairTurns(per_turn=1), list[str]()
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)

    def fail() -> None:
        raise ValueError

    fair.do(MANY, partial(done.append, "first"))
    fair.later(MANY, fail)
    fair.later(MANY, partial(done.append, "last"))
    async with asyncio.timeout(5):
        while done != ["first", "last"]:
            await asyncio.sleep(0)


async def send_at_once(port: int, address: str, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, local_addr=(address, 0), limit=1 << 20
    )
    writer.write(request)
    with contextlib.suppress(ConnectionError):
        answer = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    return answer


async def test_a_burst_of_requests_begins_a_few_a_turn(turns: Turns) -> None:
    """Of sixty that come at once a few begin in a turn, and another's among them.

    On connections that are new, and on those that were there.
    """
    began = list[tuple[str, int]]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        began.append((scope["client"][0], turns.number))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async with serve_guarded(HttpLimits(), app) as served:
        addresses = [*[MANY] * NUM_CLIENTS, ONE]
        clients = await asyncio.gather(
            *(
                asyncio.open_connection("127.0.0.1", served.port, local_addr=(address, 0))
                for address in addresses
            )
        )
        for _ in range(2):
            began.clear()
            for _, writer in clients:
                writer.write(HEAD % 0)
            for reader, _ in clients:
                await reader.readuntil(b"\r\n\r\n")
            assert max(Counter(turn for _, turn in began).values()) <= PER_TURN
            assert [address for address, _ in began].index(ONE) < NUM_CLIENTS // 2
        for _, writer in clients:
            writer.close()


async def test_clients_that_leave_at_once_are_missed_a_few_a_turn(turns: Turns) -> None:
    """Of sixty that leave together in the midst of a body, a few applications hear it a turn."""
    heard = list[int]()
    num_waiting = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal num_waiting
        num_waiting += 1
        while (await receive())["type"] != "http.disconnect":
            pass
        heard.append(turns.number)

    async with serve_guarded(HttpLimits(), app) as served, asyncio.timeout(10):
        sockets = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(NUM_CLIENTS)]
        for sock in sockets:
            sock.sendall(HEAD % 10)
        while num_waiting < NUM_CLIENTS:
            await asyncio.sleep(0)
        for sock in sockets:
            sock.close()
        while len(heard) < NUM_CLIENTS:
            await asyncio.sleep(0)
    assert max(Counter(heard).values()) <= PER_TURN


async def test_bodies_that_come_at_once_come_whole_through_tls() -> None:
    """What waits for its turn is neither lost nor put out of its order by encryption."""
    body = b"".join(b"%07d\n" % number for number in range(1 << 15))
    async with serve_guarded(HttpLimits(), options=TLS) as served:

        async def ask() -> bytes:
            reader, writer = await asyncio.open_connection("localhost", served.port, ssl=TRUST)
            writer.write(HEAD % len(body) + body)
            await reader.readuntil(b"\r\n\r\n")
            # In chunks, of which the application sends one.
            size = int(await reader.readline(), 16)
            answer = await reader.readexactly(size)
            writer.close()
            return answer

        assert await asyncio.gather(*(ask() for _ in range(12))) == [body] * 12


async def test_a_body_is_read_a_piece_at_a_time() -> None:
    """However much of a body has come, the application gets it in pieces, and all of it."""
    sizes = list[int]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        is_more = True
        while is_more:
            # Until more has come than is read.
            await asyncio.sleep(0.01)
            message = await receive()
            sizes.append(len(message["body"]))
            is_more = message["more_body"]
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async with serve_guarded(HttpLimits(), app) as served:
        request = HEAD % (1 << 20) + bytes(1 << 20)
        answer = await send_at_once(served.port, ONE, request)
    assert answer.startswith(b"HTTP/1.1 204")
    assert sum(sizes) == 1 << 20
    assert max(sizes) < 2 * READ_BYTES


async def test_a_body_that_nobody_wanted_does_not_stop_its_connection() -> None:
    """A request that is answered before its body has come leaves a connection that goes on."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    size_bytes = 8 * READ_BYTES
    async with serve_guarded(HttpLimits(), app) as served, asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(HEAD % size_bytes + bytes(READ_BYTES))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204")
        writer.write(bytes(size_bytes - READ_BYTES) + HEAD % 0)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204")
        writer.close()
