"""uvicorn's HTTP protocol with guards, for clients that send too much, too slowly, or read nothing.

uvicorn 0.5x on httptools takes a header of 20 MiB, never times out a head, a body or a reader, and
answers a parser's error in plain text in the midst of another response. Here

- a head is bounded in bytes and headers while it comes, not after, and in time;
- a body must come on, and come to its end; time in which the application does not read does not
  count; what stands between its chunks is bounded, as extensions may be of any length;
- a client that takes nothing while it is owed something is cut off, upon which the application
  sees it disconnect;
- a head that can be read in two ways is refused before a route sees it.

Connections are counted before any of this, where they are accepted: see `accept`.

A refusal has the API's shape and ends the connection. Requests that came whole before it are
answered first, in their turn; nothing that comes after it is read.

**Timers.** A request that comes in one piece, as nearly all do, starts no timer: what is missing is
looked at after each piece. A connection has one timer for what it sends and one for what it takes.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Any, Final

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
)
from uvicorn.server import ServerState

from gateway.api.client_left import CLIENT_LEFT
from gateway.api.errors import refusal
from gateway.api.write_now import WRITE_NOW
from gateway.errors import (
    GatewayError,
    HeadTooLarge,
    MalformedRequest,
    RequestTimedOut,
)
from gateway.http.answer_cycle import AnswerCycle, LeavingWatch
from gateway.http.limits import HttpLimits, Place
from gateway.http.request_head import RequestLine, check_headers, check_target, without_host
from gateway.http.small_reads import READ_BYTES
from gateway.http.write_now import PartWriter

# What a chunk needs beside its content, a size of 16 digits and line ends, and what all of them may
# have more, as extensions or trailers.
_CHUNK_FRAMING_BYTES: Final = 20
_FRAMING_BYTES: Final = 16 << 10
# Of a body: beyond so much, no more is read before the application asks for it. Less than a piece,
# as the loop goes on reading at once where a piece was as long as can be.
_AHEAD_BYTES: Final = READ_BYTES // 2


class _Refused(Exception):
    """Leave the parser: a callback of it has refused the request."""


class GuardedProtocol(HttpToolsProtocol):
    """Serve one connection within `limits`; at its end it leaves its `place`."""

    cycle: AnswerCycle

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: HttpLimits,
        place: Place,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = limits
        self._place = place
        self._max_headers, self._max_head_bytes = limits.num_headers, limits.header_bytes
        # Requests that were not answered yet when another came behind them.
        self._overtaken: list[AnswerCycle] = []
        self._refusal: GatewayError | None = None
        self._left_for: GatewayError | None = None
        # Of the request that is coming: the bytes since the last head, and when its body began.
        self._head_bytes = 0
        self._in_body = False
        self._request_line = RequestLine()
        # Of a body: what came with the piece being read, and what of it was no content.
        self._num_content_bytes = self._num_parts = self._num_framing_bytes = 0
        # Of a body that comes in several pieces, from the first of them.
        self._num_body_bytes = 0
        self._headers_done: object = None
        self._body_began_s = self._last_byte_s = 0.0
        self._sending: asyncio.TimerHandle | None = None
        self._taking: asyncio.TimerHandle | None = None

    def connection_made(  # type: ignore[override]
        self, transport: asyncio.Transport
    ) -> None:
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=self._limits.write_buffer_bytes)
        self._sending = self.loop.call_later(self._limits.header_timeout_s, self._give_up_sending)

    def connection_lost(self, exc: Exception | None) -> None:
        self._place.leave()
        self._stop_sending_timer()
        if self._taking is not None:
            self._taking.cancel()
        super().connection_lost(exc)
        # uvicorn tells the newest request alone; of pipelined ones that is not who answers.
        for cycle in (*self._overtaken, self.cycle):
            if cycle is not None and not cycle.response_complete:
                cycle.leave()

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None:
            return
        self._unset_keepalive_if_required()
        was_in_body = self._in_body
        if not was_in_body:
            self._head_bytes += len(data)
        in_head = not was_in_body and self.headers is not self._headers_done
        self._request_line.came(data, in_body=was_in_body, in_head=in_head)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self._refuse(self._left_for or MalformedRequest("The request is not HTTP/1.1."))
            return
        if was_in_body and self._has_too_much_framing(len(data)):
            self._refuse(MalformedRequest("There is too much between the chunks of the body."))
            return
        if self._head_bytes > self._max_head_bytes:
            self._refuse(self._head_too_large())
        elif self._in_body or self._head_bytes or self.headers is not self._headers_done:
            # A head has begun that is not done, perhaps behind a request that came whole.
            self._await_rest()

    def on_headers_complete(self) -> None:
        try:
            if len(self.headers) > self._max_headers or self._head_bytes > self._max_head_bytes:
                self._check_size()
            version = self.parser.get_http_version()
            value_of = check_headers(self.headers, version)
            self._request_line.check(self.parser.get_method(), self.url, version, value_of)
            self.url = without_host(self.url, value_of)
            check_target(self.url)
            if self.parser.should_upgrade():
                raise MalformedRequest("This server upgrades to no other protocol.")
        except GatewayError as exc:
            # Only an exception gets out of a parser's callback.
            self._left_for = exc
            raise _Refused from None
        self._headers_done = self.headers
        self._in_body = True
        self._num_body_bytes = 0
        self._head_bytes = 0
        before = self.cycle
        super().on_headers_complete()
        # As ASGI's types have it, an extension is a dict.
        AnswerCycle.of(self.cycle, self.loop)
        extensions: dict[str, Any] = {
            WRITE_NOW: PartWriter(self.cycle),
            CLIENT_LEFT: LeavingWatch(self.cycle),
        }
        self.scope["extensions"] = extensions
        if before is not None and not before.response_complete:
            waiting = [cycle for cycle in self._overtaken if not cycle.response_complete]
            self._overtaken = [*waiting, before]

    def on_body(self, body: bytes) -> None:
        self._num_content_bytes += len(body)
        self._num_parts += 1
        self._num_body_bytes += len(body)
        super().on_body(body)
        if len(self.cycle.body) >= _AHEAD_BYTES and not self.cycle.response_complete:
            self.flow.pause_reading()

    def on_message_complete(self) -> None:
        self._in_body = False
        if self._sending is not None:
            self._stop_sending_timer()
        super().on_message_complete()
        if not self.pipeline:
            # Nobody asks for more of a body that is whole, and who does not read on does not see
            # its client leave.
            self.flow.resume_reading()

    def _has_too_much_framing(self, num_bytes: int) -> bool:
        """Count what came in the midst of a body and is none of it."""
        self._num_framing_bytes += num_bytes - self._num_content_bytes
        self._num_content_bytes = 0
        if not self._in_body:
            self._num_parts = self._num_framing_bytes = 0
        return self._num_framing_bytes > _FRAMING_BYTES + self._num_parts * _CHUNK_FRAMING_BYTES

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._taking is None:
            self._taking = self.loop.call_later(self._limits.write_stall_s, self.transport.abort)

    def resume_writing(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None
        super().resume_writing()

    def _await_rest(self) -> None:
        """Give what is missing of a request its time, once a piece of it has come."""
        now = self._last_byte_s = self.loop.time()
        if not self._in_body:
            # Counted from its first byte, be that an empty line that begins no head yet: a byte now
            # and then does not prolong it.
            if self._sending is None:
                self._sending = self.loop.call_at(
                    now + self._limits.header_timeout_s, self._give_up_sending
                )
        elif self._body_began_s == 0.0:
            self._stop_sending_timer()
            self._body_began_s = now
            self._sending = self.loop.call_at(now + self._limits.body_idle_s, self._look_at_body)

    def _look_at_body(self) -> None:
        """Give a body up that has stood still or taken too long, or look again later."""
        limits, now = self._limits, self.loop.time()
        if self.flow.read_paused:
            # The application is what is slow.
            self._last_byte_s = now
        idle_at = self._last_byte_s + limits.body_idle_s
        more_s = self._num_body_bytes / limits.body_bytes_per_s
        over_at = self._body_began_s + min(limits.body_timeout_s + more_s, limits.body_longest_s)
        if now >= min(idle_at, over_at):
            self._give_up_sending()
        else:
            self._sending = self.loop.call_at(min(idle_at, over_at), self._look_at_body)

    def _stop_sending_timer(self) -> None:
        self._body_began_s = 0.0
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None

    def _give_up_sending(self) -> None:
        self._refuse(RequestTimedOut())

    def _check_size(self) -> None:
        """Refuse a head that came in one piece with what follows it. Raises: `HeadTooLarge`."""
        size_bytes = sum(len(name) + len(value) + 4 for name, value in self.headers)
        if (
            len(self.headers) > self._max_headers
            or size_bytes + len(self.url) > self._max_head_bytes
        ):
            raise self._head_too_large()

    def _head_too_large(self) -> HeadTooLarge:
        limits = self._limits
        return HeadTooLarge(
            f"The request line and headers exceed {limits.header_bytes >> 10} KiB "
            f"or {limits.num_headers} headers."
        )

    def _refuse(self, refusal: GatewayError) -> None:
        """Read no more; answer with an error once it is its turn, and end the connection."""
        self._refusal = refusal
        self._stop_sending_timer()
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            self._end(refusal)
        elif not self._in_body:
            # The newest request: all before it are answered in their turn.
            answered = cycle.on_response

            def end() -> None:
                answered()
                self._end(refusal)

            cycle.on_response = end
        else:
            # What was being sent is what the application waits for: there is no more of it.
            cycle.leave()
            self._end(None if cycle.response_started or self.pipeline else refusal)

    def _end(self, refusal: GatewayError | None) -> None:
        if self.transport.is_closing():
            return
        if refusal is not None:
            # There is none before a request has begun.
            self.transport.write(refusal_bytes(refusal, getattr(self, "url", b"")))
        self.transport.close()


def refusal_bytes(error: GatewayError, url: bytes = b"") -> bytes:
    """Return the whole answer that refuses a request and ends its connection."""
    request_id = uuid.uuid4().hex
    path = url.partition(b"?")[0].decode("latin-1")
    status, body = refusal(error, path, request_id)
    head = (
        b"content-type: application/json\r\n"
        b"content-length: %d\r\n"
        b"x-request-id: req_%s\r\n"
        b"connection: close\r\n\r\n"
    ) % (len(body), request_id.encode())
    return bytes(STATUS_LINE[status]) + head + body
