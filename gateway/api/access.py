"""Who may reach a route. Every route is declared through one of these two, or not at all."""

from __future__ import annotations

import inspect
import time
from datetime import UTC, datetime
from typing import Any, Protocol

from starlette.routing import Route, request_response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.domain import Principal
from gateway.domain.timeline import Timeline
from gateway.errors import AuthenticationFailed, InvalidRequest, PermissionDenied
from gateway.services.auth import admits
from gateway.services.inference import ServedModel
from gateway.services.loop_share import LoopShare
from gateway.services.read_rate import ReadRate
from gateway.telemetry import names


class Authenticates(Protocol):
    async def authenticate(self, token: str, timeline: Timeline | None) -> Principal: ...


def public(path: str, endpoint: Any) -> Route:
    """Declare a GET route that anybody may read."""
    return Route(path, endpoint, methods=["GET"])


def tenant_only(
    path: str,
    app: ASGIApp | Any,
    auth: Authenticates,
    *,
    method: str,
    reads: ReadRate | None = None,
    loop_share: LoopShare | None = None,
) -> Route:
    """Declare a route that a tenant's key opens; `app` is ASGI or a `request → response`.

    With `reads` each request is one of them; with `loop_share` each begins when its tenant's share
    of the event loop allows, and uses of it.
    """
    asgi = request_response(app) if inspect.isroutine(app) else app
    return Route(path, TenantOnly(asgi, auth, reads, loop_share), methods=[method])


class TenantOnly:
    """Let a request through with its principal in `scope["state"]`, or raise.

    Runs before the body is read, so that a stranger costs no memory. An answer to a secret that a
    rotation lets live on says until when, in a `warning` header.
    Raises: `AuthenticationFailed`; `PermissionDenied`: the client is in no network of its key;
    `TenantLimited`: its tenant reads too often, or has too much waiting.
    """

    def __init__(
        self,
        app: ASGIApp,
        auth: Authenticates,
        reads: ReadRate | None = None,
        loop_share: LoopShare | None = None,
    ) -> None:
        self._app = app
        self._auth = auth
        self._reads = reads
        self._loop_share = loop_share

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope.setdefault("state", {})
        timeline: Timeline | None = state.get("timeline")
        principal = await self._auth.authenticate(credential(scope), timeline)
        if timeline is not None:
            _tell(timeline, principal)
        check_address(scope, principal.cidrs, principal.tenant_cidrs)
        if self._reads is not None:
            await self._reads.admit(principal.tenant_id)
        state["principal"] = principal
        if principal.secret_ends_at is not None:
            send = _warning(send, principal.secret_ends_at)
        if self._loop_share is None:
            await self._app(scope, receive, send)
            return
        account = self._loop_share.of(principal.tenant_id, principal.org_id)
        if timeline is not None:
            timeline.enter(names.TURN, time.monotonic())
        await account.turn()
        if timeline is not None:
            timeline.enter(names.HANDLE, time.monotonic())
        await account.charged(self._app(scope, receive, send))


def _tell(timeline: Timeline, principal: Principal) -> None:
    slo = principal.slo
    timeline.tenant_id = principal.tenant_id
    timeline.organisation_id = principal.organisation_id
    timeline.key_id = principal.key_id
    timeline.ttft_slo_s = None if slo.ttft_ms is None else slo.ttft_ms / 1000
    timeline.tpot_slo_s = None if slo.tpot_ms is None else slo.tpot_ms / 1000


def check_address(scope: Scope, *bounds: tuple[str, ...] | None) -> None:
    """Raise `PermissionDenied` where one of `bounds` has no network of the client; None is any."""
    client = scope.get("client")
    address = None if client is None else client[0]
    for cidrs in bounds:
        if not admits(cidrs, address):
            raise PermissionDenied("This credential may not be used from your address.")


def may_use(principal: Principal, model: ServedModel) -> bool:
    """Tell whether a key and its tenant are open to a model, by its name or an alias."""
    for allowed in (principal.models, principal.tenant_models):
        if allowed is not None and {model.name, *model.aliases}.isdisjoint(allowed):
            return False
    return True


def require_model(principal: Principal, model: ServedModel) -> None:
    """Raise `PermissionDenied` (`model_not_allowed`) where the key is held to other models."""
    if not may_use(principal, model):
        raise PermissionDenied(
            f"This key may not use the model '{model.name}'. GET /v1/models lists those it may.",
            param="model",
            code="model_not_allowed",
        )


def _warning(send: Send, ends_at_s: float) -> Send:
    ends_at = datetime.fromtimestamp(ends_at_s, UTC).isoformat(timespec="seconds")
    text = f'299 - "this key\'s secret ends at {ends_at.replace("+00:00", "Z")}"'
    header = (b"warning", text.encode("ascii"))

    async def send_warned(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), header]
        await send(message)

    return send_warned


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
