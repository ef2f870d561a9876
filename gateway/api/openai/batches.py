"""`/v1/batches`: make, show, list and cancel batches, in OpenAI's shapes.

No quota is asked: what a batch's requests use is, when they run. To make one is some reads of its
tenant's, as it costs more than to look at one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final
from uuid import UUID

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.api.body import ClientGone, JsonBody, read_body
from gateway.api.idempotent import HEADER, checked_key
from gateway.api.openai.batch_schemas import (
    DEFAULT_LIMIT,
    MAX_LIMIT,
    BatchList,
    BatchRequest,
    batch_view,
)
from gateway.api.openai.ids import batch_name, read_batch_id, read_file_id
from gateway.domain import Principal
from gateway.domain.batch import Batch
from gateway.errors import InvalidRequest
from gateway.services.batches import BatchService, NewBatch
from gateway.services.read_rate import ReadRate

# What making one costs of the reads of a tenant.
_READS: Final = 2
_MAX_BODY_BYTES: Final = 64 << 10
_body: Final = JsonBody(BatchRequest)


def batch_routes(
    batches: BatchService, keyed: Callable[..., Route], reads: ReadRate | None = None
) -> list[Route]:
    """Declare the routes; `keyed` is `tenant_only` with what it needs beside."""

    async def create(request: Request) -> Response:
        principal = _principal(request)
        if reads is not None:
            await reads.admit(principal.tenant_id, _READS)
        try:
            raw = await read_body(request.scope, request.receive, max_bytes=_MAX_BODY_BYTES)
        except ClientGone:
            return Response(status_code=499)
        asked = _asked(_body.decode(raw), request)
        return _json(batch_view(await batches.create(principal, asked)))

    async def show(request: Request) -> Response:
        batch_id = read_batch_id(request.path_params["batch_id"])
        return _json(batch_view(await batches.get(_principal(request).tenant_id, batch_id)))

    async def cancel(request: Request) -> Response:
        batch_id = read_batch_id(request.path_params["batch_id"])
        return _json(batch_view(await batches.cancel(_principal(request).tenant_id, batch_id)))

    async def list_(request: Request) -> Response:
        limit, after = _page_asked(request)
        after_id = None if after is None else read_batch_id(after, param="after")
        page = await batches.page(_principal(request).tenant_id, limit=limit, after=after_id)
        return _json(_list(page.data, has_more=page.next is not None))

    path = "/v1/batches/{batch_id}"
    return [
        keyed("/v1/batches", create, method="POST"),
        keyed("/v1/batches", list_, method="GET", reads=reads),
        keyed(path, show, method="GET", reads=reads),
        keyed(f"{path}/cancel", cancel, method="POST", reads=reads),
    ]


def _principal(request: Request) -> Principal:
    principal: Principal = request.state.principal
    return principal


def _asked(body: BatchRequest, request: Request) -> NewBatch:
    keys = [value for name, value in request.scope["headers"] if name == HEADER]
    expiry = body.output_expires_after
    return NewBatch(
        input_file_id=read_file_id(body.input_file_id, param="input_file_id"),
        endpoint=body.endpoint,
        completion_window=body.completion_window,
        metadata=body.metadata,
        output_expires_after_s=None if expiry is None else expiry.seconds,
        idempotency_key=checked_key(keys) if keys else None,
        request_id=UUID(hex=request.state.request_id),
    )


def _page_asked(request: Request) -> tuple[int, str | None]:
    text = request.query_params.get("limit", str(DEFAULT_LIMIT))
    if not (text.isascii() and text.isdigit() and len(text) <= 3 and 1 <= int(text) <= MAX_LIMIT):
        raise InvalidRequest(f"'limit' must be 1 to {MAX_LIMIT}.", param="limit")
    return int(text), request.query_params.get("after")


def _list(batches: Sequence[Batch], *, has_more: bool) -> BatchList:
    ids = [batch_name(batch.id) for batch in batches]
    return BatchList(
        [batch_view(batch) for batch in batches],
        first_id=ids[0] if ids else None,
        last_id=ids[-1] if ids else None,
        has_more=has_more,
    )


def _json(body: msgspec.Struct) -> Response:
    headers = {"cache-control": "no-store"}
    return Response(msgspec.json.encode(body), headers=headers, media_type="application/json")
