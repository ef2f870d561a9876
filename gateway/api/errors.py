"""The one place where exceptions become HTTP statuses and OpenAI's error shape, or Anthropic's.

Handlers are coroutines: Starlette would call others on a thread of a few, a hop for each refusal.
The body is `{"error": {"message", "type", "param", "code"}}`; below `/v1/messages` it is
`{"type": "error", "error": {"type", "message"}, "request_id"}`. The most specific class in
`STATUS` along an exception's MRO decides; a test proves that every `GatewayError` is listed.
"""

from __future__ import annotations

import logging
import math
import time
from typing import Any, Final, Literal

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from gateway import errors
from gateway.api.dialect import speaks_anthropic
from gateway.api.ratelimits import DEGRADED, anthropic_ratelimit_headers, ratelimit_headers
from gateway.api.token_usage import Usage
from gateway.domain.quota import Standing
from gateway.domain.timeline import Timeline
from gateway.services.auth import Failures

logger = logging.getLogger(__name__)

STATUS: Final[dict[type[errors.GatewayError], tuple[int, str]]] = {
    errors.InvalidRequest: (400, "invalid_request_error"),
    errors.ContextLengthExceeded: (400, "invalid_request_error"),
    errors.UnsupportedParameter: (400, "invalid_request_error"),
    errors.ConstraintRefused: (400, "invalid_request_error"),
    errors.ConstraintUnmet: (400, "invalid_request_error"),
    errors.BodyTooLarge: (413, "invalid_request_error"),
    errors.MalformedRequest: (400, "invalid_request_error"),
    errors.HeadTooLarge: (431, "invalid_request_error"),
    errors.RequestTimedOut: (408, "invalid_request_error"),
    errors.FileTooLarge: (413, "invalid_request_error"),
    errors.RangeNotSatisfiable: (416, "invalid_request_error"),
    errors.AboveCeiling: (400, "invalid_request_error"),
    errors.IdempotencyMismatch: (422, "invalid_request_error"),
    errors.AuthenticationFailed: (401, "authentication_error"),
    errors.TooManyFailures: (429, "rate_limit_error"),
    errors.LoginFailed: (401, "authentication_error"),
    errors.LoginLimited: (429, "rate_limit_error"),
    errors.LinkOver: (401, "authentication_error"),
    errors.NotInvited: (403, "permission_error"),
    errors.PermissionDenied: (403, "permission_error"),
    errors.SetByOperator: (403, "permission_error"),
    errors.NotFound: (404, "invalid_request_error"),
    errors.ModelNotFound: (404, "invalid_request_error"),
    errors.ResponseNotFound: (404, "invalid_request_error"),
    errors.FileNotFound: (404, "invalid_request_error"),
    errors.StoredFileMissing: (404, "invalid_request_error"),
    errors.Conflict: (409, "conflict_error"),
    errors.VersionConflict: (409, "conflict_error"),
    errors.PlanChanged: (409, "conflict_error"),
    errors.BatchNotEnded: (409, "conflict_error"),
    errors.FileInUse: (409, "conflict_error"),
    errors.IdempotencyConflict: (409, "conflict_error"),
    errors.AnswerNotKept: (409, "conflict_error"),
    errors.TenantLimited: (429, "rate_limit_error"),
    errors.BodiesTooLarge: (429, "rate_limit_error"),
    errors.AnswersTooLarge: (429, "rate_limit_error"),
    errors.StorageFull: (429, "insufficient_quota"),
    errors.EnqueuedTokensExceeded: (429, "insufficient_quota"),
    errors.QuotaExhausted: (429, "insufficient_quota"),
    errors.Overloaded: (503, "server_error"),
    errors.Saturated: (503, "server_error"),
    errors.AnswersSaturated: (503, "server_error"),
    errors.StoreUnavailable: (503, "server_error"),
    errors.CountersUnavailable: (503, "server_error"),
    errors.StorageUnavailable: (503, "server_error"),
    errors.IssuerUnavailable: (503, "server_error"),
    errors.ServerDraining: (503, "server_draining"),
    errors.InternalFailure: (500, "server_error"),
}


# OpenAI's status → Anthropic's, and the `type` there; what is not here keeps its own.
OVERLOADED: Final = 529
_ANTHROPIC: Final = {
    401: (401, "authentication_error"),
    403: (403, "permission_error"),
    404: (404, "not_found_error"),
    413: (413, "request_too_large"),
    429: (429, "rate_limit_error"),
    500: (500, "api_error"),
    503: (OVERLOADED, "overloaded_error"),
}

# After these the rest of a body may still be on its way, and nobody wants it.
_ENDS_CONNECTION: Final = (errors.BodyTooLarge, errors.BodiesTooLarge, errors.Saturated)
# SDKs would send these again, by their status, and only ever get the same answer.
_NEVER_RETRY: Final = (errors.AnswerNotKept, errors.BatchNotEnded, errors.TooManyFailures)


class ErrorDetail(msgspec.Struct):
    """Spell an error as OpenAI's SDKs read it; absent fields are null, not left out.

    `retryable` is ours: it is there, and true, where the same request may simply be sent again.
    """

    message: str
    type: str
    param: str | None = None
    code: str | None = None
    retryable: bool | msgspec.UnsetType = msgspec.UNSET


class ErrorBody(msgspec.Struct):
    """Wrap an error; one that ends a stream brings the usage that the stream was asked for.

    One about versions brings what is there now, and what was sent.
    """

    error: ErrorDetail
    usage: Usage | msgspec.UnsetType = msgspec.UNSET
    current: Any = msgspec.UNSET
    yours: Any = msgspec.UNSET


class MessagesErrorDetail(msgspec.Struct):
    """Say what is wrong in Anthropic's words; `message` names the field."""

    type: str
    message: str


class MessagesError(msgspec.Struct):
    """Spell an error as Anthropic's SDKs read it."""

    error: MessagesErrorDetail
    request_id: str
    type: Literal["error"] = "error"


def classify(exc: errors.GatewayError) -> tuple[int, str]:
    """Return the status and the `type` of an exception, by the closest class in `STATUS`."""
    for cls in type(exc).__mro__:
        if cls in STATUS:
            return STATUS[cls]
    raise AssertionError(f"{type(exc).__name__} has no status")


def error_body(exc: errors.GatewayError, usage: Usage | None = None) -> bytes:
    """Encode the public part of an exception."""
    _, kind = classify(exc)
    retryable = isinstance(exc, errors.ServerDraining) or msgspec.UNSET
    detail = ErrorDetail(exc.message, kind, exc.param, exc.code, retryable)
    body = ErrorBody(detail, usage or msgspec.UNSET)
    if isinstance(exc, errors.VersionConflict):
        body.current, body.yours = exc.current, exc.yours
    return msgspec.json.encode(body)


def messages_error(exc: errors.GatewayError, request_id: str) -> MessagesError:
    """Say the public part of an exception in Anthropic's shape; there a message names the field."""
    status, _ = classify(exc)
    text = exc.message
    if exc.param is not None and exc.param not in text:
        text = f"{exc.param}: {text}"
    return _messages_error(status, text, request_id)


def refusal(exc: errors.GatewayError, path: str, request_id: str) -> tuple[int, bytes]:
    """Return the status and the body of an exception, in the words of a path."""
    status, _ = classify(exc)
    if speaks_anthropic(path):
        return status_of(status, path), msgspec.json.encode(messages_error(exc, request_id))
    return status, error_body(exc)


def status_of(status: int, path: str) -> int:
    """Return the status that a path has for what OpenAI's paths answer with `status`."""
    return _ANTHROPIC.get(status, (status,))[0] if speaks_anthropic(path) else status


def _messages_error(status: int, text: str, request_id: str) -> MessagesError:
    _, kind = _ANTHROPIC.get(status, (status, "invalid_request_error"))
    return MessagesError(MessagesErrorDetail(kind, text), f"req_{request_id}")


def error_response(exc: errors.GatewayError, request: Request | None = None) -> Response:
    """Answer with an exception's status, body and, where waiting helps, `retry-after`."""
    path, request_id = "", ""
    if request is not None:
        path, state = request.scope["path"], request.scope.get("state", {})
        request_id = state.get("request_id", "")
    status, body = refusal(exc, path, request_id)
    headers: dict[str, str] = {}
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    if isinstance(exc, _ENDS_CONNECTION):
        headers["connection"] = "close"
    if isinstance(exc, errors.RangeNotSatisfiable):
        headers["content-range"] = f"bytes */{exc.size_bytes}"
    if isinstance(exc, errors.TenantLimited):
        headers |= standing_headers(exc.standing, path)
    if isinstance(exc, errors.CountersUnavailable):
        headers |= DEGRADED
    if isinstance(exc, _NEVER_RETRY) or (isinstance(exc, errors.TenantLimited) and exc.never_fits):
        headers["x-should-retry"] = "false"
    if exc.retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(exc.retry_after_s)))
        headers["retry-after-ms"] = str(max(1, math.ceil(exc.retry_after_s * 1000)))
    return Response(body, status, headers, media_type="application/json")


def standing_headers(standing: Standing | None, path: str) -> dict[str, str]:
    """Return the headers that say how limits stand, in the words of a path."""
    if speaks_anthropic(path):
        return anthropic_ratelimit_headers(standing, now_s=time.time())
    return ratelimit_headers(standing)


class OnAuthenticationFailed:
    """Handle what no key opened: count it by the client that the request comes from."""

    def __init__(self, failures: Failures) -> None:
        self._failures = failures

    async def __call__(self, request: Request, exc: Exception) -> Response:
        assert isinstance(exc, errors.AuthenticationFailed)
        client = request.scope.get("client")
        error = await self._failures.answer(client[0] if client else None, exc)
        _tell(request, error)
        return error_response(error, request)


async def on_gateway_error(request: Request, exc: Exception) -> Response:
    """Handle what the gateway raised on purpose; the internal detail goes to the log alone."""
    assert isinstance(exc, errors.GatewayError)
    if exc.detail is not None:
        status, _ = classify(exc)
        level = logging.ERROR if status >= 500 else logging.INFO
        # A path is its client's text; the route's pattern is ours.
        route, state = request.scope.get("route"), request.scope.get("state", {})
        path = "?" if route is None else route.path
        logger.log(level, "%s req_%s: %s", path, state.get("request_id", "?"), exc.detail)
    _tell(request, exc)
    response = error_response(exc, request)
    if request.scope.get("state", {}).get("is_unread"):
        response.headers["connection"] = "close"
    return response


async def on_http_exception(request: Request, exc: Exception) -> Response:
    """Give the router's own refusals (404, 405) the same shape."""
    assert isinstance(exc, HTTPException)
    method, path, headers = request.scope["method"], request.scope["path"], exc.headers
    if exc.status_code == 404:
        text, code = (
            f"There is no {method} {path}.",
            "not_found",
        )
    elif exc.status_code == 405:
        text, code = f"{method} is not allowed on {path}.", "method_not_allowed"
        headers = {"allow": ", ".join(_methods_of(request))}
    else:
        text, code = exc.detail, None
    state = request.scope.get("state", {})
    timeline: Timeline | None = state.get("timeline")
    if timeline is not None:
        timeline.code = code or "http_error"
    body: msgspec.Struct = ErrorBody(ErrorDetail(text, "invalid_request_error", None, code))
    if speaks_anthropic(path):
        body = _messages_error(exc.status_code, text, state.get("request_id", ""))
    return Response(
        msgspec.json.encode(body), exc.status_code, headers, media_type="application/json"
    )


def _methods_of(request: Request) -> list[str]:
    """Return what a path may be asked by: each method has a route, and the router names one's."""
    here = (
        route
        for route in request.app.routes
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE
    )
    return sorted({method for route in here for method in route.methods or ()})


async def on_unexpected(request: Request, exc: Exception) -> Response:
    """Tell a caller nothing of our bug but that it is ours; the server logs the traceback."""
    error = errors.InternalFailure()
    _tell(request, error)
    return error_response(error, request)


def _tell(request: Request, error: errors.GatewayError) -> None:
    """Say in a request's timeline what refused or ended it."""
    timeline: Timeline | None = request.scope.get("state", {}).get("timeline")
    if timeline is not None:
        timeline.failed(error.code, error.limit)
