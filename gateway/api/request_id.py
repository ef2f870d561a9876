"""The outermost layer: every request gets an id of the server's own making.

What else a layer below wants in the head of the answer it puts into
`scope["state"]["answer_headers"]`. Its timeline is in `scope["state"]["timeline"]`, and is told to
who listens when the request has ended, however it did.

A client's `x-request-id` is not taken over: ids that callers choose have let one tenant's
request overwrite another's elsewhere (CVE-2026-105755).
"""

from __future__ import annotations

import time
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.api.client_left import CLIENT_LEFT
from gateway.api.dialect import speaks_anthropic
from gateway.api.trace_heads import TraceHeads
from gateway.api.write_now import WRITE_NOW, WriteNow
from gateway.domain.timeline import Timeline
from gateway.random_bits import RandomBits
from gateway.services.requests import EndedRequests
from gateway.telemetry import names

_ID_BYTES: Final = 16
_METHODS: Final = frozenset(("GET", "POST", "DELETE", "HEAD", "OPTIONS", "PUT", "PATCH"))
# A write that takes no longer was not held up by its client.
_STALL_S: Final = 0.001


class RequestId:
    """Mint `scope["state"]["request_id"]` and return it as `x-request-id`."""

    def __init__(
        self,
        app: ASGIApp,
        ended: EndedRequests | None = None,
        traces: TraceHeads | None = None,
    ) -> None:
        self._app = app
        self._traces = traces
        self._ended = ended
        self._bits = RandomBits()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = self._bits.take(_ID_BYTES).hex()
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        state["timeline"] = timeline = _timeline(request_id, scope)
        headers = _headers(scope["path"], request_id)
        traces = self._traces
        if traces is not None:
            traces.read(scope, timeline)

        async def send_with_id(message: Message) -> None:
            began_s = time.monotonic()
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message.get("headers", ()),
                    *headers,
                    *state.get("answer_headers", ()),
                ]
                if traces is not None:
                    traces.settle(scope, timeline)
                    message["headers"].append(traces.header(timeline))
                _begun(timeline, message["status"], began_s)
                await send(message)
                return
            await send(message)
            _written(timeline, len(message.get("body", b"")), began_s)

        extensions = scope.get("extensions", {})
        now = extensions.get(WRITE_NOW)
        if now is not None:
            state[WRITE_NOW] = _counted(now, timeline)
        state[CLIENT_LEFT] = extensions.get(CLIENT_LEFT)
        try:
            await self._app(scope, receive, send_with_id)
        finally:
            if self._ended is not None:
                route = scope.get("route")
                timeline.route = "" if route is None else route.path
                if not timeline.code and (not timeline.status or timeline.outcome == "cancelled"):
                    timeline.code = "client_gone"
                if traces is not None:
                    traces.settle(scope, timeline)
                timeline.end(time.monotonic())
                self._ended.tell(timeline)


def _headers(path: str, request_id: str) -> list[tuple[bytes, bytes]]:
    """Return the headers that SDKs read an id from: Anthropic's have a name of their own for it."""
    name = b"req_" + request_id.encode()
    headers = [(b"x-request-id", name)]
    if speaks_anthropic(path):
        headers.append((b"request-id", name))
    return headers


def _timeline(request_id: str, scope: Scope) -> Timeline:
    method = scope["method"]
    timeline = Timeline(
        request_id,
        time.monotonic(),
        time.time_ns(),
        method=method if method in _METHODS else "_OTHER",
        trace_id=int(request_id, 16),
    )
    timeline.enter(names.AUTH, timeline.began_s)
    return timeline


def _counted(now: WriteNow, timeline: Timeline) -> WriteNow:
    """Write at once, and count what was written as what is sent."""

    def write(data: bytes) -> bool:
        began_s = time.monotonic()
        if not now(data):
            return False
        _written(timeline, len(data), began_s)
        return True

    return write


def _begun(timeline: Timeline, status: int, at_s: float) -> None:
    timeline.status = status
    # What computes sends when it has come so far.
    if not timeline.generations:
        timeline.enter(names.SEND, at_s)


def _written(timeline: Timeline, num_bytes: int, began_s: float) -> None:
    now_s = time.monotonic()
    timeline.num_events += 1
    timeline.num_bytes += num_bytes
    if now_s - began_s > _STALL_S:
        timeline.stall_s += now_s - began_s
    last_s = timeline.last_write_s
    if last_s is None:
        timeline.first_write_s = began_s
    elif began_s - last_s > timeline.max_gap_s:
        timeline.max_gap_s = began_s - last_s
    timeline.last_write_s = now_s
