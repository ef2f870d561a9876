"""What an answer is on the wire, and in how many pieces, over a transport that keeps them."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import pytest
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from gateway.http.answer_cycle import AnswerCycle, LeavingWatch

pytestmark = pytest.mark.anyio

DATE = (b"date", b"today")


class Pieces:
    """Keep what is written, a piece a call."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.written.append(data)

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed


class Wire:
    """Answer one request; `num_ended` counts the answers that have come to their end."""

    def __init__(self, method: str = "GET", *, keep_alive: bool = True) -> None:
        self.pieces = Pieces()
        self.num_ended = 0
        transport = cast(asyncio.Transport, self.pieces)
        self.flow = FlowControl(transport)
        logger = logging.getLogger("test")
        scope: Any = {"type": "http", "method": method}
        uvicorns = RequestResponseCycle(
            scope,
            transport,
            self.flow,
            logger,
            logger,
            False,
            [DATE],
            asyncio.Event(),
            False,
            keep_alive,
            self._ended,
        )
        self.cycle = AnswerCycle.of(uvicorns, asyncio.get_running_loop())

    def _ended(self) -> None:
        self.num_ended += 1

    async def begin(self, *headers: tuple[bytes, bytes], status: int = 200) -> None:
        await self.cycle.send(
            {"type": "http.response.start", "status": status, "headers": list(headers)}
        )

    async def body(self, data: bytes, *, more: bool = False) -> None:
        await self.cycle.send({"type": "http.response.body", "body": data, "more_body": more})


def sized(num_bytes: int) -> tuple[bytes, bytes]:
    return b"content-length", b"%d" % num_bytes


HEAD = b"HTTP/1.1 200 OK\r\ndate: today\r\n"


async def test_a_head_goes_out_with_its_body() -> None:
    """Two messages are one piece: a system call, and a packet."""
    wire = Wire()
    await wire.begin(sized(2), (b"x-a", b"b"))
    assert wire.pieces.written == []
    await wire.body(b"ok")
    assert wire.pieces.written == [HEAD + b"content-length: 2\r\nx-a: b\r\n\r\nok"]
    assert (wire.num_ended, wire.pieces.is_closed) == (1, False)
    await asyncio.sleep(0)
    assert len(wire.pieces.written) == 1


async def test_a_head_waits_for_no_body_that_is_late() -> None:
    """At the end of the loop's turn it goes out by itself."""
    wire = Wire()
    await wire.begin()
    await asyncio.sleep(0)
    assert wire.pieces.written == [HEAD + b"transfer-encoding: chunked\r\n\r\n"]
    await wire.body(b"one", more=True)
    await wire.body(b"", more=True)
    await wire.body(b"four")
    assert wire.pieces.written[1:] == [b"3\r\none\r\n", b"", b"4\r\nfour\r\n0\r\n\r\n"]


async def test_a_part_that_is_written_at_once_takes_the_head_along() -> None:
    """It can never come before it."""
    wire = Wire()
    await wire.begin()
    wire.cycle.write_part(b"one")
    await asyncio.sleep(0)
    assert wire.pieces.written == [HEAD + b"transfer-encoding: chunked\r\n\r\n3\r\none\r\n"]


async def test_a_long_body_is_not_copied_behind_its_head() -> None:
    """Only what is cheap to copy is one piece with it."""
    wire = Wire()
    body = bytes(100_000)
    await wire.begin(sized(len(body)))
    await wire.body(body)
    head, rest = wire.pieces.written
    assert head.endswith(b"\r\n\r\n")
    assert rest is body


@pytest.mark.parametrize("headers", [(), (sized(5),)])
async def test_a_head_alone_is_asked_for(headers: tuple[tuple[bytes, bytes], ...]) -> None:
    """It tells the length, if anything, and nothing of the body comes."""
    wire = Wire("HEAD")
    await wire.begin(*headers)
    await wire.body(b"hello")
    lines = b"".join(b"%b: %b\r\n" % pair for pair in headers)
    assert wire.pieces.written == [HEAD + lines + b"\r\n"]
    assert wire.num_ended == 1


async def test_an_answer_without_a_body_has_no_chunks() -> None:
    """Of a 204 nothing but the head is sent."""
    wire = Wire()
    await wire.begin(status=204)
    await wire.body(b"")
    assert wire.pieces.written == [b"HTTP/1.1 204 No Content\r\ndate: today\r\n\r\n"]


@pytest.mark.parametrize("by_header", [True, False])
async def test_a_connection_that_ends_is_told_so_and_closed(by_header: bool) -> None:
    """Whether the application says so or the client has, and once."""
    wire = Wire(keep_alive=by_header)
    await wire.begin(sized(1), *([(b"connection", b"Close")] if by_header else []))
    await wire.body(b"x")
    [piece] = wire.pieces.written
    assert piece.lower().count(b"connection: close\r\n") == 1
    assert wire.pieces.is_closed


@pytest.mark.parametrize(
    ("length", "first", "last"), [(1, b"", b"xx"), (3, b"x", b"y"), (3, b"xx", b"yy")]
)
async def test_a_body_is_as_long_as_its_head_says(length: int, first: bytes, last: bytes) -> None:
    """What is longer or shorter is an error and never looks like a whole answer."""
    wire = Wire()
    await wire.begin(sized(length))
    await wire.body(first, more=True)
    with pytest.raises(RuntimeError, match="as long as"):
        await wire.body(last)
    assert wire.num_ended == 0


@pytest.mark.parametrize(
    "header", [(b"x-a", b"b\r\nset-cookie: c"), (b"x-a", b"b\nc"), (b"x a", b"b"), (b"x:a", b"b")]
)
async def test_no_header_hides_another(header: tuple[bytes, bytes]) -> None:
    """A line end in a name or a value is our fault, and nothing of it is sent."""
    wire = Wire()
    with pytest.raises(RuntimeError, match="header"):
        await wire.begin(header)
    await asyncio.sleep(0)
    assert wire.pieces.written == []


async def test_messages_out_of_order_are_errors() -> None:
    """A body before its head, a second head, anything behind the end."""
    wire = Wire()
    with pytest.raises(RuntimeError, match="begins with its head"):
        await wire.body(b"x")
    await wire.begin(sized(0))
    with pytest.raises(RuntimeError, match="behind a head"):
        await wire.begin(sized(0))
    await wire.body(b"")
    with pytest.raises(RuntimeError, match="behind the end"):
        await wire.body(b"")


async def test_nothing_is_sent_to_who_has_left() -> None:
    """Neither what waits for the end of the turn, nor what comes later."""
    wire = Wire()
    await wire.begin()
    wire.cycle.disconnected = True
    await asyncio.sleep(0)
    await wire.body(b"x")
    assert wire.pieces.written == []


async def test_who_is_behind_is_waited_for() -> None:
    """While the transport's buffer is full, nothing more is written."""
    wire = Wire()
    wire.flow.pause_writing()
    begin = asyncio.create_task(wire.begin(sized(0)))
    await asyncio.sleep(0.01)
    assert not wire.cycle.response_started
    wire.flow.resume_writing()
    await begin
    assert wire.cycle.response_started


async def test_an_application_is_told_once_that_its_client_left() -> None:
    """At once if that was before it asked, and not once it asks for nothing any more."""
    told: list[str] = []
    wire = Wire()
    watch = LeavingWatch(wire.cycle)
    watch(lambda: told.append("first"))
    wire.cycle.leave()
    wire.cycle.leave()
    assert told == ["first"]
    assert wire.cycle.message_event.is_set()
    watch(lambda: told.append("late"))
    assert told == ["first", "late"]

    other = Wire()
    watch = LeavingWatch(other.cycle)
    watch(lambda: told.append("never"))
    watch(None)
    other.cycle.leave()
    assert told == ["first", "late"]


async def test_who_waits_for_more_hears_that_the_answer_is_over() -> None:
    """As if the client had left: nothing more can be said to it."""
    wire = Wire()
    waits = asyncio.create_task(wire.cycle.receive())
    await asyncio.sleep(0)
    await wire.begin(sized(1))
    await wire.body(b"x")
    assert (await asyncio.wait_for(waits, 5))["type"] == "http.disconnect"


async def test_a_client_that_is_answered_is_not_told_to_go_on() -> None:
    """Its body is not wanted any more."""
    wire = Wire()
    wire.cycle.waiting_for_100_continue = True
    await wire.begin(sized(1))
    wire.cycle.message_event.set()
    await wire.cycle.receive()
    assert all(b"100 Continue" not in piece for piece in wire.pieces.written)
