"""`/v1/responses/{id}`: read, delete and ask about responses that are stored.

A tenant finds its own: another's is not there. Looking is one of its reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.api.openai.parameters import unsupported
from gateway.api.responses.ids import RESPONSE_ID, read_response_id, response_name
from gateway.api.responses.schemas import InputItemList, ResponseDeleted
from gateway.domain import Principal
from gateway.errors import InvalidRequest, NotFound
from gateway.services.read_rate import ReadRate
from gateway.services.responses import StoredResponses

DEFAULT_LIMIT: Final = 20
MAX_LIMIT: Final = 100
MAX_AFTER_CHARS: Final = 64
_ORDERS: Final = ("asc", "desc")
_NO_STORE: Final = {"cache-control": "no-store"}

Schema = dict[str, Any]

_ID: Final[Schema] = {
    "name": "response_id",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": RESPONSE_ID},
}
RESPONSE_ID_PARAMETER: Final[list[Schema]] = [_ID]
INPUT_ITEM_PARAMETERS: Final[list[Schema]] = [
    _ID,
    {
        "name": "limit",
        "in": "query",
        "required": False,
        "schema": {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT},
    },
    {
        "name": "order",
        "in": "query",
        "required": False,
        "schema": {"type": "string", "enum": [*_ORDERS]},
    },
    {
        "name": "after",
        "in": "query",
        "required": False,
        "schema": {"type": "string", "pattern": "^[a-z]{2,3}_[0-9a-f]{38}$"},
    },
]


def stored_routes(
    stored: StoredResponses, keyed: Callable[..., Route], reads: ReadRate | None = None
) -> list[Route]:
    """Declare the routes; `keyed` is `tenant_only` with what it needs beside."""

    async def show(request: Request) -> Response:
        _check_query(request.query_params, ("stream", "include_obfuscation"), _asks_for_stream)
        response_id = read_response_id(request.path_params["response_id"])
        body = await stored.get(_principal(request).tenant_id, response_id)
        return Response(body, headers=_NO_STORE, media_type="application/json")

    async def delete(request: Request) -> Response:
        response_id = read_response_id(request.path_params["response_id"])
        await stored.delete(_principal(request).tenant_id, response_id)
        return _json(ResponseDeleted(response_name(response_id)))

    async def cancel(request: Request) -> Response:
        response_id = read_response_id(request.path_params["response_id"])
        await stored.get(_principal(request).tenant_id, response_id)
        raise InvalidRequest(
            "Only a response in the background can be cancelled, and this server has none: one "
            "ends when its client leaves.",
            code="response_not_cancellable",
        )

    async def items(request: Request) -> Response:
        limit, order, after = _page_asked(request.query_params)
        response_id = read_response_id(request.path_params["response_id"])
        sent = await stored.sent(_principal(request).tenant_id, response_id)
        return _json(_page(sent if order == "asc" else sent[::-1], limit, after))

    path = "/v1/responses/{response_id}"
    return [
        keyed(path, show, method="GET", reads=reads),
        keyed(path, delete, method="DELETE", reads=reads),
        keyed(f"{path}/cancel", cancel, method="POST", reads=reads),
        keyed(f"{path}/input_items", items, method="GET", reads=reads),
    ]


def _principal(request: Request) -> Principal:
    principal: Principal = request.state.principal
    return principal


def _check_query(
    params: Mapping[str, str], known: Sequence[str], refuse: Callable[[Mapping[str, str]], None]
) -> None:
    """Refuse what nobody here does, and what nobody knows. Raises: `InvalidRequest`."""
    refuse(params)
    for name in params:
        if name not in known:
            raise unsupported(name[:64])


def _asks_for_stream(params: Mapping[str, str]) -> None:
    if params.get("stream", "false").lower() != "false":
        raise unsupported("stream")


def _page_asked(params: Mapping[str, str]) -> tuple[int, str, str | None]:
    _check_query(params, ("limit", "order", "after"), lambda params: None)
    text = params.get("limit", str(DEFAULT_LIMIT))
    if not (text.isascii() and text.isdigit() and len(text) <= 3 and 1 <= int(text) <= MAX_LIMIT):
        raise InvalidRequest(f"'limit' must be 1 to {MAX_LIMIT}.", param="limit")
    order = params.get("order", "desc")
    if order not in _ORDERS:
        raise InvalidRequest("'order' must be one of asc, desc.", param="order")
    return int(text), order, params.get("after")


def _page(items: Sequence[dict[str, Any]], limit: int, after: str | None) -> InputItemList:
    start = 0
    if after is not None:
        ids = [item["id"] for item in items]
        if after not in ids:
            raise NotFound("'after' names no item of this response.", param="after")
        start = ids.index(after) + 1
    page = list(items[start : start + limit])
    first, last = (page[0]["id"], page[-1]["id"]) if page else ("", "")
    return InputItemList(page, first, last, start + limit < len(items))


def _json(body: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(body), headers=_NO_STORE, media_type="application/json")
