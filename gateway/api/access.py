"""Who may reach a route. Every route is declared through one of these two, or not at all."""

from __future__ import annotations

import inspect
from typing import Any, Protocol

from starlette.routing import Route, request_response
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.domain import Principal
from gateway.errors import AuthenticationFailed, InvalidRequest


class Authenticates(Protocol):
    async def authenticate(self, token: str) -> Principal: ...


def public(path: str, endpoint: Any) -> Route:
    """Declare a GET route that anybody may read."""
    return Route(path, endpoint, methods=["GET"])


def tenant_only(path: str, app: ASGIApp | Any, auth: Authenticates, *, method: str) -> Route:
    """Declare a route that a tenant's key opens; `app` is ASGI or a `request → response`."""
    asgi = request_response(app) if inspect.isroutine(app) else app
    return Route(path, TenantOnly(asgi, auth), methods=[method])


class TenantOnly:
    """Let a request through with its principal in `scope["state"]`, or raise.

    Runs before the body is read, so that a stranger costs no memory.
    """

    def __init__(self, app: ASGIApp, auth: Authenticates) -> None:
        self._app = app
        self._auth = auth

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        principal = await self._auth.authenticate(credential(scope))
        scope.setdefault("state", {})["principal"] = principal
        await self._app(scope, receive, send)


def credential(scope: Scope) -> str:
    """Read the key from `Authorization: Bearer` or `x-api-key`; never from the query string.

    Raises: `AuthenticationFailed` without one, `InvalidRequest` with two different ones.
    """
    tokens = set()
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, rest = value.partition(b" ")
            if scheme.lower() == b"bearer":
                tokens.add(rest.strip())
        elif name == b"x-api-key":
            tokens.add(value.strip())
    tokens.discard(b"")
    if len(tokens) > 1:
        raise InvalidRequest(
            "The request carries different keys; send one.", code="ambiguous_credentials"
        )
    if not tokens:
        raise AuthenticationFailed
    return str(tokens.pop().decode("latin-1"))
