"""Parts of an answer that are written without waiting, over a real connection."""

from __future__ import annotations

import asyncio
import gc
import socket
import weakref

import pytest
from starlette.types import Receive, Scope, Send

from gateway.api.write_now import WRITE_NOW
from tests.guarded_server import QUICK, serve_guarded

pytestmark = pytest.mark.anyio


async def begin(send: Send, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def end(send: Send) -> None:
    await send({"type": "http.response.body", "body": b""})


async def asked(port: int, method: bytes = b"GET") -> bytes:
    """Return the whole answer, of a connection that is closed after it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(method + b" / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    try:
        return await asyncio.wait_for(reader.read(), 10)
    finally:
        writer.close()


async def test_parts_are_chunks_between_those_that_are_sent() -> None:
    """What is written at once and what is sent come in their order, as chunks of one body."""
    wrote: list[bool] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        write = scope["extensions"][WRITE_NOW]
        wrote.append(write(b"before the headers"))
        await begin(send)
        wrote.append(write(b"one"))
        await send({"type": "http.response.body", "body": b"two", "more_body": True})
        wrote.append(write(b"three" * 10))
        await end(send)
        wrote.append(write(b"after the end"))

    async with serve_guarded(QUICK, app) as served:
        head, _, body = (await asked(served.port)).partition(b"\r\n\r\n")
    assert wrote == [False, True, True, False]
    assert b"transfer-encoding: chunked" in head
    assert body == b"3\r\none\r\n3\r\ntwo\r\n32\r\n" + b"three" * 10 + b"\r\n0\r\n\r\n"


@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
async def test_nothing_is_written_into_an_answer_without_chunks(method: bytes) -> None:
    """An answer of a given length, and one without a body, hold what was sent alone."""
    wrote: list[bool] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        sized = () if method == b"HEAD" else ((b"content-length", b"0"),)
        await begin(send, sized)
        wrote.append(scope["extensions"][WRITE_NOW](b"x"))
        await end(send)

    async with serve_guarded(QUICK, app) as served:
        assert (await asked(served.port, method)).endswith(b"\r\n\r\n")
    assert wrote == [False]


async def test_who_is_behind_is_left_to_what_waits() -> None:
    """No more than the buffer's bound is kept for a client that reads nothing."""
    num_written = 0
    done = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal num_written
        write = scope["extensions"][WRITE_NOW]
        await begin(send)
        while write(bytes(1 << 16)):
            num_written += 1
            await asyncio.sleep(0)
        done.set()
        while (await receive())["type"] != "http.disconnect":
            pass

    async with serve_guarded(QUICK, app) as served:
        with socket.create_connection(("127.0.0.1", served.port)) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            await asyncio.wait_for(done.wait(), 10)
    assert num_written > 0


async def test_parts_for_who_has_left_go_nowhere() -> None:
    """They count as written, as what is sent to such a client does, and nothing is kept."""
    left, wrote = asyncio.Event(), list[bool]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await begin(send)
        while (await receive())["type"] != "http.disconnect":
            pass
        wrote.append(scope["extensions"][WRITE_NOW](b"x"))
        left.set()

    async with serve_guarded(QUICK, app) as served:
        with socket.create_connection(("127.0.0.1", served.port)) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            await asyncio.sleep(0.05)
        await asyncio.wait_for(left.wait(), 10)
    assert wrote == [True]


async def test_no_request_is_kept_by_it() -> None:
    """The scope holds the writer; without a circle all of it is gone with the request."""
    cycles: list[weakref.ref[object]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        # uvicorn's `send` is a method of the cycle, typed as a callable.
        cycles.append(weakref.ref(send.__self__))  # type: ignore[attr-defined]
        await begin(send)
        await end(send)

    gc.collect()
    gc.disable()
    try:
        async with serve_guarded(QUICK, app) as served:
            await asked(served.port)
            await asyncio.sleep(0.05)
            assert [cycle() for cycle in cycles] == [None]
    finally:
        gc.enable()
