"""A connection within limits: what is refused, what is given up, and what goes on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from dataclasses import replace

import pytest
from starlette.types import Receive, Scope, Send

from gateway.api.client_left import CLIENT_LEFT
from gateway.http.limits import HttpLimits
from tests.guarded_server import QUICK, Served, serve_guarded

pytestmark = pytest.mark.anyio

LENGTH = (b"content-length", b"1")

OK = b"HTTP/1.1 200 OK"


def post(body: bytes, *headers: bytes, path: bytes = b"/") -> bytes:
    lines = [b"POST " + path + b" HTTP/1.1", b"Host: a", *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


async def exchange(served: Served, *parts: bytes, wait_s: float = 0.0) -> bytes:
    """Send parts, `wait_s` apart, and read until the server closes or is silent for a while."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    answer = asyncio.create_task(_read(reader))
    with contextlib.suppress(ConnectionError):
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(wait_s)
    try:
        return await answer
    finally:
        writer.close()


async def _read(reader: asyncio.StreamReader, idle_s: float = 1.2) -> bytes:
    received = b""
    while True:
        try:
            piece = await asyncio.wait_for(reader.read(1 << 16), idle_s)
        except TimeoutError:
            return received
        except ConnectionError:
            return received
        if not piece:
            return received
        received += piece


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def code_of(answer: bytes) -> str:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head
    assert b"x-request-id: req_" in head
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return str(error["code"])


@pytest.mark.parametrize(
    ("head", "status", "code"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 400, "malformed_request"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, "malformed_request"),
        (b"GET / HTTP/1.1\r\nHost: a/?x=\r\n\r\n", 400, "malformed_request"),
        (b"GET /a%2fb HTTP/1.1\r\nHost: a\r\n\r\n", 400, "malformed_request"),
        (b"GET //a HTTP/1.1\r\nHost: a\r\n\r\n", 400, "malformed_request"),
        (b"GET http://a//b HTTP/1.1\r\nHost: a\r\n\r\n", 400, "malformed_request"),
        (b"GET http://a/../b HTTP/1.1\r\nHost: a\r\n\r\n", 400, "malformed_request"),
        (b"GET http://a/b%2fc HTTP/1.1\r\nHost: a\r\n\r\n", 400, "malformed_request"),
        (b"GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n", 400, "malformed_request"),
        (b"GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n", 400, "malformed_request"),
        (b"GET /a/../b HTTP/1.1\r\nHost: a\r\n\r\n", 400, "malformed_request"),
        (post(b"", b"Content-Length: 3", b"Transfer-Encoding: chunked"), 400, "malformed_request"),
        (
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n",
            400,
            "malformed_request",
        ),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 2000 + b"\r\n\r\n", 431, "headers_too_large"),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 20 + b"\r\n", 431, "headers_too_large"),
        (b"GET /" + b"x" * 2000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 431, "headers_too_large"),
        (b"GET /\r\n\r\n", 400, "malformed_request"),
        (b"GET /\r\nHost: a\r\n\r\n", 400, "malformed_request"),
        (b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400, "malformed_request"),
        (b"GET /  HTTP/1.1\r\nHost: a\r\n\r\n", 400, "malformed_request"),
        (b"GET  / HTTP/1.1\r\nHost: a\r\nX: GET / HTTP/1.1\r\n\r\n", 400, "malformed_request"),
        (b"\x16\x03\x01 hello\r\n\r\n", 400, "malformed_request"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nBad Name: y\r\n\r\n", 400, "malformed_request"),
        (
            b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
            400,
            "malformed_request",
        ),
    ],
)
async def test_a_head_that_is_no_good_is_refused(head: bytes, status: int, code: str) -> None:
    """Nothing of it reaches the application, and the answer has the API's shape."""
    async with serve_guarded(QUICK) as served:
        answer = await exchange(served, head)
        assert (status_of(answer), code_of(answer)) == (status, code)
        assert served.bodies == []


async def test_a_header_without_end_is_refused_while_it_comes() -> None:
    """The parser never holds more of a header than a head may have."""
    async with serve_guarded(QUICK) as served:
        answer = await exchange(served, b"GET / HTTP/1.1\r\nHost: a\r\nX: ", *[b"x" * 600] * 2)
        assert code_of(answer) == "headers_too_large"


async def test_pieces_and_pipelines_are_served() -> None:
    """A request in small pieces and two requests in one piece are answered like any other."""
    async with serve_guarded(QUICK) as served:
        request = post(b"hello", b"Content-Length: 5")
        pieces = [request[i : i + 9] for i in range(0, len(request), 9)]
        assert (await exchange(served, *pieces)).startswith(OK)
        assert (await exchange(served, request + request)).count(OK) == 2
        assert served.bodies == [b"hello"] * 3


async def test_a_target_with_its_host_is_served_by_its_path() -> None:
    """Servers must take what clients send to proxies; what comes behind is read as ever."""
    seen = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append((scope["path"], scope["raw_path"], scope["query_string"]))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    target = post(b"hello", b"Content-Length: 5", path=b"http://A/v1/%61?x=http://b//")
    async with serve_guarded(QUICK, app) as served:
        assert (await exchange(served, target + target)).count(OK) == 2
    assert seen == [("/v1/a", b"/v1/%61", b"x=http://b//")] * 2


@pytest.mark.parametrize("step", [1, 7, 50, 77, 100])
async def test_request_lines_are_read_wherever_they_are_cut(step: int) -> None:
    """Requests of all kinds behind each other, cut anywhere, are served; a bad one ends them."""
    chunked = post(b"2\r\nab\r\n0\r\n\r\n", b"Transfer-Encoding: chunked")
    plain = post(b"hello", b"Content-Length: 5")
    get = b"GET /x?y=1 HTTP/1.1\r\nHost: a\r\n\r\n"
    good = b"\r\n" + get + plain + chunked + get + plain
    whole = good + get.replace(b"GET ", b"GET  ")
    async with serve_guarded(QUICK) as served:
        answer = await exchange(served, *[whole[i : i + step] for i in range(0, len(whole), step)])
        assert answer.count(OK) == 5
        assert answer.count(b"HTTP/1.1 400") == 1
        assert len(served.bodies) == 5


async def test_a_good_line_behind_does_not_excuse_a_bad_one() -> None:
    """Nor does one in a header before it."""
    get = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    bad = get.replace(b"GET ", b"GET  ")
    async with serve_guarded(QUICK) as served:
        assert (await exchange(served, get + bad + get)).count(OK) == 1


async def test_what_stands_between_chunks_is_bounded() -> None:
    """A flood of extensions or of trailers is refused; many small chunks are not."""
    head = post(b"", b"Transfer-Encoding: chunked")
    small = b"1;a=b\r\nx\r\n" * 2_000 + b"0\r\n\r\n"
    async with serve_guarded(QUICK) as served:
        pieces = [small[i : i + 4_096] for i in range(0, len(small), 4_096)]
        assert (await exchange(served, head, *pieces, wait_s=0.01)).startswith(OK)
        flood = [b"1;a=", *[b"x" * 4_000] * 6]
        assert code_of(await exchange(served, head, *flood, wait_s=0.01)) == "malformed_request"
        trailers = [b"1\r\nx\r\n0\r\n", *[b"X: %b\r\n" % (b"y" * 900)] * 20]
        assert code_of(await exchange(served, head, *trailers, wait_s=0.01)) == "malformed_request"


async def test_a_kept_connection_is_not_held_to_the_first_head() -> None:
    """Requests on one connection that each come in time may take longer than one head may."""
    async with serve_guarded(QUICK) as served:
        requests = [post(b"hello", b"Content-Length: 5")] * 4
        assert (await exchange(served, *requests, wait_s=0.15)).count(OK) == 4


@pytest.mark.parametrize(
    "parts",
    [
        [b""],
        [b"\r\n"],
        [b"\r\n"] * 10,
        [b"GET / HTTP/1.1\r\nHost: a\r\n"],
        [b"GET / HTTP/1.1\r\n", *[b"X: y\r\n"] * 9],
        [post(b"hel", b"Content-Length: 5")],
        [post(b"", b"Content-Length: 50"), *[b"x"] * 20],
        [post(b"2\r\nab\r\n", b"Transfer-Encoding: chunked")],
    ],
)
async def test_what_does_not_come_to_its_end_is_given_up(parts: list[bytes]) -> None:
    """Half a head or body, or one that trickles, gets a 408 and its connection is closed."""
    async with serve_guarded(QUICK) as served:
        began_s = time.monotonic()
        answer = await exchange(served, *parts, wait_s=0.1 if len(parts) > 1 else 0.0)
        assert status_of(answer) == 408
        assert code_of(answer) == "request_timeout"
        assert time.monotonic() - began_s < 5
        assert served.bodies == []


async def test_a_long_body_has_longer() -> None:
    """Who keeps up a rate is not cut off in the midst of it, except at the longest there is."""
    parts = [post(b"", b"Content-Length: 8000"), *[b"x" * 1000] * 8]
    for longest_s, status in ((5.0, 200), (0.5, 408)):
        limits = replace(QUICK, body_timeout_s=0.3, body_bytes_per_s=4000, body_longest_s=longest_s)
        async with serve_guarded(limits) as served:
            answer = await exchange(served, *parts, wait_s=0.1)
            assert status_of(answer) == status
            assert len(served.bodies) == (1 if status == 200 else 0)


async def test_who_reads_nothing_is_cut_off() -> None:
    """The application learns that the client is gone within the stall time, and not at once."""
    async with serve_guarded(QUICK) as served:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, ("127.0.0.1", served.port))
            began_s = time.monotonic()
            await loop.sock_sendall(client, b"GET /stream HTTP/1.1\r\nHost: a\r\n\r\n")
            while not served.num_gone and time.monotonic() < began_s + 10:
                await asyncio.sleep(0.02)
            assert served.num_gone == 1
            assert time.monotonic() - began_s >= QUICK.write_stall_s
        assert served.connections.num_open == 0


async def test_connections_of_an_address_are_bounded() -> None:
    """One more than allowed gets a 503, and when one has gone there is room again."""
    limits = HttpLimits(max_connections_per_address=2)
    async with serve_guarded(limits) as served:
        held = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(2)]
        answer = await exchange(served, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert status_of(answer) == 503
        assert code_of(answer) == "too_many_connections"
        held[0][1].close()
        await held[0][1].wait_closed()
        while served.connections.num_open > 1:
            await asyncio.sleep(0.01)
        assert (await exchange(served, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")).startswith(OK)
        held[1][1].close()


async def test_garbage_does_not_cost_the_requests_before_it_their_answers() -> None:
    """Whole requests are answered in their turn, then what follows them is refused."""
    async with serve_guarded(QUICK) as served:
        whole = post(b"hello", b"Content-Length: 5")
        answer = await exchange(served, whole * 3 + b"\x00garbage\r\n\r\n" + whole)
        assert answer.count(OK) == 3
        assert answer.count(b"HTTP/1.1 400") == 1
        assert served.bodies == [b"hello"] * 3


async def test_garbage_behind_a_stream_does_not_get_into_it() -> None:
    """What follows a request that is still being answered puts no second head into the answer."""
    async with serve_guarded(QUICK) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"GET /stream HTTP/1.1\r\nHost: a\r\n\r\n")
        answer = await reader.read(1 << 20)
        writer.write(b"\x00garbage\r\n\r\n")
        while len(answer) < 8 << 20:
            answer += await reader.read(1 << 20)
        writer.close()
        assert answer.count(b"HTTP/1.1") == 1


async def test_a_broken_body_ends_what_waits_for_it() -> None:
    """An application that waits for the rest learns that there is none, and nothing hangs."""
    async with serve_guarded(QUICK) as served:
        answer = await exchange(served, post(b"xyz\r\n", b"Transfer-Encoding: chunked"))
        assert code_of(answer) == "malformed_request"
        assert served.num_gone == 1


async def test_who_answers_a_pipelined_request_hears_that_its_client_left() -> None:
    """The first of two requests on a connection is told, and not only the newest."""
    async with serve_guarded(QUICK) as served:
        _, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"GET /stream HTTP/1.1\r\nHost: a\r\n\r\n" * 2)
        while not served.bodies:
            await asyncio.sleep(0.01)
        writer.transport.abort()
        async with asyncio.timeout(5):
            while served.num_gone < 1:
                await asyncio.sleep(0.01)
        assert len(served.bodies) == 1


@pytest.mark.parametrize("num_requests", [1, 2])
async def test_an_application_need_not_wait_to_hear_that_its_client_left(num_requests: int) -> None:
    """The server calls whoever answers, though other requests may stand behind; of one that was
    answered to its end it says nothing."""
    told: list[str] = []
    answering = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["extensions"][CLIENT_LEFT](lambda: told.append(scope["path"]))
        await send({"type": "http.response.start", "status": 200, "headers": [LENGTH]})
        if scope["path"] == "/done":
            await send({"type": "http.response.body", "body": b"x"})
            return
        answering.set()
        while "/open" not in told:
            await asyncio.sleep(0.01)

    async with serve_guarded(QUICK, app) as served:
        _, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"GET /done HTTP/1.1\r\nHost: a\r\n\r\n")
        writer.write(b"GET /open HTTP/1.1\r\nHost: a\r\n\r\n" * num_requests)
        async with asyncio.timeout(5):
            await answering.wait()
            writer.transport.abort()
            while not told:
                await asyncio.sleep(0.01)
    assert told == ["/open"]


@pytest.mark.parametrize("num_bytes", [1 << 10, 40 << 10, 100 << 10, 1 << 20])
async def test_who_has_sent_a_long_body_is_seen_to_leave(num_bytes: int) -> None:
    """A body that came faster than it was read does not keep its connection unread behind it."""
    told: list[int] = []
    answering = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        num_read, has_more = 0, True
        while has_more:
            message = await receive()
            num_read, has_more = num_read + len(message["body"]), message["more_body"]
        scope["extensions"][CLIENT_LEFT](lambda: told.append(num_read))
        answering.set()
        while not told:
            await asyncio.sleep(0.01)

    async with serve_guarded(QUICK, app) as served:
        _, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(post(b"", b"Content-Length: %d" % num_bytes))
        await asyncio.sleep(0.05)
        writer.write(b"x" * num_bytes)
        async with asyncio.timeout(5):
            await answering.wait()
            writer.transport.abort()
            while not told:
                await asyncio.sleep(0.01)
    assert told == [num_bytes]


async def test_empty_lines_do_not_hold_a_kept_connection() -> None:
    """Between requests, bytes that begin none of them are given as long as a head is."""
    async with serve_guarded(QUICK) as served:
        began_s = time.monotonic()
        answer = await exchange(served, post(b"hello", b"Content-Length: 5"), b"\r\n", wait_s=0.1)
        assert answer.startswith(OK)
        assert answer.count(b"HTTP/1.1 408") == 1
        assert time.monotonic() - began_s < 5


async def test_time_for_one_body_is_not_taken_from_the_next() -> None:
    """Bodies that overlap with the heads behind them have each its own time."""
    async with serve_guarded(QUICK) as served:
        request = post(b"hello", b"Content-Length: 5")
        # Each piece ends a body and begins the next head; together they take longer than one may.
        pieces = [request[:-2], *[request[-2:] + request[:-2]] * 11, request[-2:]]
        answer = await exchange(served, *pieces, wait_s=0.1)
        assert answer.count(OK) == 12
        assert b"408" not in answer
