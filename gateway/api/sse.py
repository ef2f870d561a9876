"""Server-sent events over raw ASGI: one write per engine step and stream.

Framing: https://html.spec.whatwg.org/multipage/server-sent-events.html; OpenAI's streams use
`data:` lines alone and end with `data: [DONE]`.
"""

from __future__ import annotations

from typing import Final

from starlette.types import Send

DONE: Final = b"data: [DONE]\n\n"

_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # Proxies of the nginx family buffer a response unless told not to.
    (b"x-accel-buffering", b"no"),
]


def event(payload: bytes) -> bytes:
    """Frame one JSON payload; it holds no raw newline, so one `data:` line is enough."""
    return b"data: " + payload + b"\n\n"


class EventStream:
    """Write events to one client; the headers go out with the first of them.

    Until then a failure can still be answered with a status.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False

    async def write(self, data: bytes, *, last: bool = False) -> None:
        """Send framed events; `last` ends the response."""
        if not self.started:
            self.started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})
