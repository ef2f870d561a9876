"""The outermost layer: every request gets an id of the server's own making.

What else a layer below wants in the head of the answer it puts into
`scope["state"]["answer_headers"]`.

A client's `x-request-id` is not taken over: ids that callers choose have let one tenant's
request overwrite another's elsewhere (CVE-2026-105755).
"""

from __future__ import annotations

import uuid

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class RequestId:
    """Mint `scope["state"]["request_id"]` and return it as `x-request-id`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = uuid.uuid4().hex
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        header = (b"x-request-id", b"req_" + request_id.encode())

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message.get("headers", ()),
                    header,
                    *state.get("answer_headers", ()),
                ]
            await send(message)

        await self._app(scope, receive, send_with_id)
