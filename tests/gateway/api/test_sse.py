"""Events on their way to one client, and what it hears while there are none."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message

from gateway.api.sse import EventStream, event

pytestmark = pytest.mark.anyio

QUICK_S = 0.05


class Client:
    """Take what is sent; while `blocked`, as one that does not read."""

    def __init__(self) -> None:
        self.body = b""
        self.num_starts = 0
        self.readable = asyncio.Event()
        self.readable.set()

    async def send(self, message: Message) -> None:
        await self.readable.wait()
        if message["type"] == "http.response.start":
            self.num_starts += 1
        else:
            self.body += message["body"]

    async def wait_for(self, text: bytes, count: int) -> None:
        while self.body.count(text) < count:
            await asyncio.sleep(0.005)


async def test_silence_is_filled_with_comments_and_events_stay_whole() -> None:
    """Comments come while nothing else does, between events, and begin the answer if need be."""
    client = Client()
    events = EventStream(client.send, keep_alive_s=QUICK_S)
    await asyncio.wait_for(client.wait_for(b": keep-alive\n\n", 2), 5)
    assert events.started
    await events.write(event(b"{}"))
    await events.write(event(b"[]"), last=True)
    events.close()
    assert client.body.replace(b": keep-alive\n\n", b"") == b"data: {}\n\ndata: []\n\n"
    assert client.num_starts == 1


async def test_a_busy_stream_has_no_comments() -> None:
    """Events that come often enough are all that a client hears."""
    client = Client()
    events = EventStream(client.send, keep_alive_s=0.2)
    for _ in range(20):
        await events.write(b"x")
        await asyncio.sleep(0.02)
    events.close()
    assert client.body == b"x" * 20


async def test_who_does_not_read_gets_no_comments_on_top() -> None:
    """While a write waits for its client, nothing is added to what waits."""
    client = Client()
    events = EventStream(client.send, keep_alive_s=QUICK_S)
    client.readable.clear()
    writing = asyncio.create_task(events.write(b"x", last=True))
    await asyncio.sleep(4 * QUICK_S)
    client.readable.set()
    await writing
    events.close()
    assert client.body == b"x"


async def test_an_end_is_an_end() -> None:
    """After `close` nothing is sent any more."""
    client = Client()
    events = EventStream(client.send, keep_alive_s=QUICK_S)
    events.close()
    await asyncio.sleep(4 * QUICK_S)
    assert client.body == b""
    assert not events.started


async def test_what_can_be_written_at_once_is() -> None:
    """Behind its headers, and never into what waits: an event then goes the way that waits."""
    client = Client()
    written: list[bytes] = []
    may_write = True

    def now(data: bytes) -> bool:
        if may_write:
            written.append(data)
        return may_write

    events = EventStream(client.send, now=now)
    assert not events.write_now(b"before the headers")
    await events.write(b"a")
    assert events.write_now(b"b")
    may_write = False
    assert not events.write_now(b"c")
    may_write = True
    client.readable.clear()
    writing = asyncio.create_task(events.write(b"c"))
    await asyncio.sleep(0)
    assert not events.write_now(b"d")
    client.readable.set()
    await writing
    assert events.write_now(b"d")
    events.close()
    assert (client.body, written) == (b"ac", [b"b", b"d"])


async def test_a_comment_on_its_way_is_not_overtaken() -> None:
    """What is written at once counts as heard, and waits for a comment that is on its way."""
    client = Client()
    events = EventStream(client.send, keep_alive_s=QUICK_S, now=lambda data: True)
    await events.write(b"a")
    for _ in range(8):
        assert events.write_now(b"b")
        await asyncio.sleep(QUICK_S / 4)
    assert client.body == b"a"
    client.readable.clear()
    await asyncio.sleep(4 * QUICK_S)
    assert not events.write_now(b"b")
    events.close()
