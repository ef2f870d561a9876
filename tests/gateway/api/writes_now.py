"""Serve an application to a client in this process as our server does, with its extension."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.api.write_now import WRITE_NOW


class WritesNow:
    """Offer to write at once, to a client that never waits; `num_written` counts what was."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.num_written = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        def write(data: bytes) -> bool:
            assert data, "an empty chunk ends the body"
            # A coroutine, though typed as an awaitable: it ends at its first step.
            sending = send({"type": "http.response.body", "body": data, "more_body": True})
            try:
                sending.send(None)  # type: ignore[attr-defined]
            except StopIteration:
                self.num_written += 1
                return True
            raise AssertionError("this client takes what it is sent")

        await self.app({**scope, "extensions": {WRITE_NOW: write}}, receive, send)
