"""uvicorn's request and its answer, whose head goes out together with what comes first behind it.

uvicorn writes a head at once and the body after it: two packets, and two system calls, of which
either costs more than to frame the answer. ASGI lets a server keep the head until the first of the
body is there. It is kept to the end of the loop's turn at most: whoever sends a head and then waits
has it sent.
"""

from __future__ import annotations

import asyncio
import re
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

# What would end a line, or a name, of a head.
_NO_NAME: Final = re.compile(rb'[\x00-\x1f\x7f()<>@,;:\[\]={} \t\\"]')
_NO_VALUE: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_BODILESS: Final = frozenset({204, 304})
# A longer piece is not copied to stand behind a head.
_JOINED_BYTES: Final = 64 << 10


class AnswerCycle(RequestResponseCycle):
    """Answer one request; made of uvicorn's own (`of`), which cannot be told of another class."""

    # What was not written of a head, and who writes it if nothing comes behind it.
    _head: bytes = b""
    _writing: asyncio.Handle | None = None
    _on_left: Callable[[], None] | None = None
    _loop: asyncio.AbstractEventLoop

    @classmethod
    def of(cls, cycle: RequestResponseCycle, loop: asyncio.AbstractEventLoop) -> AnswerCycle:
        """Turn a request into one of these, before its task has taken a step on `loop`."""
        cycle.__class__ = cls
        assert isinstance(cycle, AnswerCycle)
        # The running loop is a call of the kernel each time that it is asked for.
        cycle._loop = loop
        return cycle

    def leave(self) -> None:
        """Learn that its client has left, or is as good as gone."""
        self.disconnected = True
        self.message_event.set()
        on_left, self._on_left = self._on_left, None
        if on_left is not None:
            on_left()

    def on_left(self, call: Callable[[], None] | None) -> None:
        """Call back when the client leaves, at once if it has."""
        self._on_left = call
        if call is not None and self.disconnected:
            self.leave()

    async def send(self, message: Any) -> None:
        """Send a part of the answer, as ASGI has it."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        kind = message["type"]
        if not self.response_started:
            if kind != "http.response.start":
                raise RuntimeError(f"an answer begins with its head, not with {kind!r}")
            self._begin(message["status"], message.get("headers", ()))
        elif self.response_complete:
            raise RuntimeError(f"{kind!r} came behind the end of an answer")
        elif kind != "http.response.body":
            raise RuntimeError(f"behind a head comes a body, not {kind!r}")
        else:
            self._go_on(message.get("body", b""), is_last=not message.get("more_body", False))

    def write_part(self, data: bytes) -> None:
        """Write a part, not empty and not the last, of an answer that comes in chunks."""
        self._write(b"%x\r\n%b\r\n" % (len(data), data))

    def _begin(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self.response_started = True
        self.waiting_for_100_continue = False
        self._head = self._framed(status, [*self.default_headers, *headers])
        self._writing = self._loop.call_soon(self._write, b"")

    def _framed(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
        """Frame a head, and learn of it how the body comes. Raises: `RuntimeError`."""
        names, values = zip(*headers, strict=True) if headers else ((), ())
        if _NO_NAME.search(b"".join(names)) or _NO_VALUE.search(b"".join(values)):
            raise RuntimeError("a header has what would end it")
        # ASGI has names in lower case.
        value_of = dict(headers)
        pairs = zip(names, values, strict=True)
        lines = [STATUS_LINE[status], *(b"%b: %b\r\n" % pair for pair in pairs)]
        if b"close" in value_of.get(b"connection", b"").lower():
            self.keep_alive = False
        elif not self.keep_alive:
            lines.append(b"connection: close\r\n")
        length = value_of.get(b"content-length")
        if length is not None:
            self.expected_content_length, self.chunked_encoding = int(length), False
        elif self.scope["method"] != "HEAD" and status not in _BODILESS:
            self.chunked_encoding = True
            lines.append(b"transfer-encoding: chunked\r\n")
        lines.append(b"\r\n")
        return b"".join(lines)

    def _go_on(self, body: bytes, *, is_last: bool) -> None:
        if self.scope["method"] == "HEAD":
            self.expected_content_length, body = 0, b""
        elif self.chunked_encoding:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            body = chunk + b"0\r\n\r\n" if is_last else chunk
        else:
            self.expected_content_length -= len(body)
            if self.expected_content_length < 0 or (is_last and self.expected_content_length):
                raise RuntimeError("an answer is as long as its head says")
        self._write(body)
        if is_last:
            self._end()

    def _end(self) -> None:
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()

    def _write(self, data: bytes) -> None:
        """Write what is left of the head, and `data` behind it."""
        if self._writing is None:
            self.transport.write(data)
            return
        self._writing.cancel()
        head, self._head, self._writing = self._head, b"", None
        if self.disconnected or self.transport.is_closing():
            return
        if len(data) > _JOINED_BYTES:
            self.transport.write(head)
        else:
            data = head + data
        self.transport.write(data)


class LeavingWatch:
    """Tell an application when the client of one request leaves (`CLIENT_LEFT`)."""

    __slots__ = ("_cycle",)

    def __init__(self, cycle: AnswerCycle) -> None:
        # The scope holds this, and the cycle its scope: a circle, unless one of them lets go.
        self._cycle: Final = weakref.ref(cycle)

    def __call__(self, call: Callable[[], None] | None) -> None:
        cycle = self._cycle()
        if cycle is not None:
            cycle.on_left(call)
