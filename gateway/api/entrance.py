"""What a request to an inference endpoint passes once its key is known, before its body is read."""

from __future__ import annotations

import time

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.domain import Principal
from gateway.errors import InvalidRequest, NotFound, PermissionDenied
from gateway.services.health import OverloadWatch
from gateway.services.quotas import Entry
from gateway.telemetry import names


class Entrance:
    """Pass requests on to `app` that the server's load and the key's rate of requests let in.

    `scope["state"]["is_counted"]` then tells whether a request was counted; `app` sets it where it
    has counted one itself, so that what it refuses late is not counted twice.
    Raises: `Saturated`, `TenantLimited`, `CountersUnavailable`; what `app` raises.
    """

    def __init__(self, app: ASGIApp, overload: OverloadWatch, entry: Entry) -> None:
        self._app = app
        self._overload = overload
        self._entry = entry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["timeline"].enter(names.ENTER, time.monotonic())
        self._overload.check_unread()
        principal: Principal = scope["state"]["principal"]
        state = scope["state"]
        state["is_counted"] = await self._entry.enter(principal, _content_length(scope))
        try:
            await self._app(scope, receive, send)
        except (InvalidRequest, NotFound, PermissionDenied):
            self._entry.refused(principal, was_counted=state["is_counted"])
            raise


def _content_length(scope: Scope) -> int | None:
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value)
    return None
