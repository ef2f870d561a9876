"""Server-sent events over raw ASGI: one write per engine step and stream.

Framing: https://html.spec.whatwg.org/multipage/server-sent-events.html; OpenAI's streams use
`data:` lines alone and end with `data: [DONE]`, Anthropic's name each event.
"""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.types import Send

from gateway.api.write_now import WriteNow

DONE: Final = b"data: [DONE]\n\n"
# What ends a stream of Anthropic's shape.
MESSAGE_STOP: Final = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
# What ends one of a response's: no text in it can hold these bytes, whose quotes would be escaped.
RESPONSE_ENDS: Final = (
    b',"type":"response.completed"}\n\n',
    b',"type":"response.incomplete"}\n\n',
)
# A stream without one of these has failed.
ENDS: Final = (DONE, MESSAGE_STOP, *RESPONSE_ENDS)

KEEP_ALIVE_S: Final = 15.0

_COMMENT: Final = b": keep-alive\n\n"
_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # Proxies of the nginx family buffer a response unless told not to.
    (b"x-accel-buffering", b"no"),
]


def event(payload: bytes) -> bytes:
    """Frame one JSON payload; it holds no raw newline, so one `data:` line is enough."""
    return b"data: " + payload + b"\n\n"


def named_event(name: bytes, payload: bytes) -> bytes:
    """Frame one JSON payload under an event's name."""
    return b"event: %b\ndata: %b\n\n" % (name, payload)


class EventStream:
    """Write events to one client; the headers go out with the first of them.

    Until then a failure can still be answered with a status. A client that hears nothing for
    `keep_alive_s` gets a comment, which its parser passes over, so that no proxy on the way takes
    the connection for dead; a first token that takes so long is waited for with the headers sent.
    What follows the headers goes through `rest`, where that is given, past all those who look at
    an answer's beginning alone, and by `now` where nothing has to wait. Call `close` at the end,
    whatever the end.
    """

    def __init__(
        self,
        send: Send,
        *,
        keep_alive_s: float = KEEP_ALIVE_S,
        rest: Send | None = None,
        now: WriteNow | None = None,
    ) -> None:
        self._send = send
        self._rest = send if rest is None else rest
        self._now = now
        self._keep_alive_s = keep_alive_s
        self._loop = asyncio.get_running_loop()
        self._is_busy = False
        self._wrote_s = self._loop.time()
        self._timer = self._loop.call_later(keep_alive_s, self._look)
        self._comment: asyncio.Task[None] | None = None
        self.started = False

    async def write(self, data: bytes, *, last: bool = False) -> None:
        """Send framed events; `last` ends the response."""
        if self._comment is not None:
            await self._comment
        self._is_busy = True
        await self._write(data, last=last)
        self._is_busy = False

    def write_now(self, data: bytes) -> bool:
        """Send framed events unless that has to wait, and tell which it was."""
        if self._now is None or not self.started or self._is_busy or self._comment is not None:
            return False
        if not self._now(data):
            return False
        self._wrote_s = self._loop.time()
        return True

    def close(self) -> None:
        """Send no more comments."""
        self._timer.cancel()
        if self._comment is not None:
            self._comment.cancel()

    async def _write(self, data: bytes, *, last: bool = False) -> None:
        if not self.started:
            self.started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        await self._rest({"type": "http.response.body", "body": data, "more_body": not last})
        self._wrote_s = self._loop.time()

    def _look(self) -> None:
        """Send a comment if the silence has been long enough, and look again when it may be."""
        now = self._loop.time()
        quiet_until_s = self._wrote_s + self._keep_alive_s
        # A write that waits for its client is no silence of ours.
        if now >= quiet_until_s and not self._is_busy and self._comment is None:
            self._comment = self._loop.create_task(self._write(_COMMENT))
            self._comment.add_done_callback(self._forget_comment)
            quiet_until_s = now + self._keep_alive_s
        self._timer = self._loop.call_at(max(quiet_until_s, now + 0.01), self._look)

    def _forget_comment(self, comment: asyncio.Task[None]) -> None:
        self._comment = None
        if not comment.cancelled() and comment.exception() is not None:
            # Who is gone is noticed by the next event, or by the watch on the connection.
            self._timer.cancel()
