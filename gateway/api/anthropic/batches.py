"""`/v1/messages/batches`: make, show, list, cancel, delete and read batches of messages.

No quota is asked: what a batch's requests use is, when they run. To make one is some reads of its
tenant's, as it is of a batch that is made of a file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final
from uuid import UUID

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.api.anthropic.batch_input import read_requests
from gateway.api.anthropic.batch_results import BatchResults
from gateway.api.anthropic.batch_schemas import (
    DEFAULT_LIMIT,
    MAX_LIMIT,
    MessageBatchDeleted,
    MessageBatchList,
    message_batch_name,
    message_batch_view,
    read_message_batch_id,
)
from gateway.api.body import SHORT_BODY_BYTES, ClientGone, read_parts
from gateway.api.held_bytes import HeldBytes
from gateway.domain import Principal
from gateway.domain.batch import Batch
from gateway.errors import BatchNotEnded, InvalidRequest
from gateway.services.batches import MessageBatches, check_allowed
from gateway.services.fair_pool import FairPool
from gateway.services.health import OverloadWatch
from gateway.services.inference import ModelRegistry
from gateway.services.read_rate import ReadRate

# What making one costs of the reads of a tenant.
_READS: Final = 2
# Beside the body: it in one piece, and its lines.
_COPIES: Final = 2
_REST_RATIO: Final = 5.0
# As many as are read and shown within some milliseconds, with metadata as long as it may be;
# clients ask for the next page by themselves.
PAGE_BATCHES: Final = 100


@dataclass(frozen=True, slots=True)
class BatchDesk:
    """Hold what batches of messages stand on."""

    batches: MessageBatches
    models: ModelRegistry
    pool: FairPool
    bodies: HeldBytes
    overload: OverloadWatch
    reads: ReadRate | None = None


def message_batch_routes(
    desk: BatchDesk, keyed: Callable[..., Route], once: Callable[[ASGIApp], ASGIApp]
) -> list[Route]:
    """Declare the routes; `keyed` is `tenant_only` with what it needs beside.

    `once` has a request with an idempotency key answered once.
    """
    batches, reads = desk.batches, desk.reads

    async def show(request: Request) -> Response:
        return _json(message_batch_view(await _asked_for(request, batches)))

    async def cancel(request: Request) -> Response:
        cancelled = await batches.cancel(_tenant_of(request), _id_of(request))
        return _json(message_batch_view(cancelled))

    async def delete(request: Request) -> Response:
        batch_id = _id_of(request)
        await batches.delete(_tenant_of(request), batch_id)
        return _json(MessageBatchDeleted(message_batch_name(batch_id)))

    async def results(request: Request) -> Response:
        batch = await _asked_for(request, batches)
        if batch.ended_at is None:
            raise BatchNotEnded("The batch has no results yet.")
        return BatchResults(batches, batch)

    async def list_(request: Request) -> Response:
        limit = _limit(request)
        after, before = (_id_in(request, name) for name in ("after_id", "before_id"))
        if after is not None and before is not None:
            raise InvalidRequest("Send 'after_id' or 'before_id', not both.", param="before_id")
        page = await batches.page(
            _tenant_of(request), limit=min(limit, PAGE_BATCHES), after=after, before=before
        )
        views = [message_batch_view(batch) for batch in page.data]
        first, last = (views[0].id, views[-1].id) if views else (None, None)
        return _json(MessageBatchList(views, page.next is not None, first, last))

    path = "/v1/messages/batches/{message_batch_id}"
    return [
        keyed("/v1/messages/batches", once(BatchCreation(desk)), method="POST"),
        keyed("/v1/messages/batches", list_, method="GET", reads=reads),
        keyed(path, show, method="GET", reads=reads),
        keyed(path, delete, method="DELETE", reads=reads),
        keyed(f"{path}/cancel", cancel, method="POST", reads=reads),
        keyed(f"{path}/results", results, method="GET", reads=reads),
    ]


class BatchCreation:
    """Make a batch of the requests in a body."""

    def __init__(self, desk: BatchDesk) -> None:
        self._desk = desk

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            batch = await self._create(scope, receive)
        except ClientGone:
            return
        await _json(message_batch_view(batch))(scope, receive, send)

    async def _create(self, scope: Scope, receive: Receive) -> Batch:
        desk, state = self._desk, scope["state"]
        principal: Principal = state["principal"]
        check_allowed(principal)
        desk.overload.check_unread()
        if desk.reads is not None:
            await desk.reads.admit(principal.tenant_id, _READS)
        with desk.bodies.room(principal.tenant_id) as room:
            body = await read_parts(scope, receive, room=room)
            size_bytes = sum(map(len, body))
            room.grow(_COPIES * size_bytes)
            lines, number = await self._lines(principal, body, size_bytes)
            request_id = UUID(hex=state["request_id"])
            return await desk.batches.create(principal, lines, number, request_id)

    async def _lines(
        self, principal: Principal, body: list[bytes], size_bytes: int
    ) -> tuple[list[bytes], int]:
        read = partial(_read, body, principal, self._desk.models)
        if size_bytes <= SHORT_BODY_BYTES:
            return read()
        return await self._desk.pool.run(
            principal.tenant_id, read, size_bytes=size_bytes, rest_ratio=_REST_RATIO
        )


def _read(
    body: list[bytes], principal: Principal, models: ModelRegistry
) -> tuple[list[bytes], int]:
    raw = b"".join(body)
    body.clear()
    return read_requests(raw, principal, models)


async def _asked_for(request: Request, batches: MessageBatches) -> Batch:
    return await batches.get(_tenant_of(request), _id_of(request))


def _tenant_of(request: Request) -> UUID:
    principal: Principal = request.state.principal
    return principal.tenant_id


def _id_of(request: Request) -> UUID:
    return read_message_batch_id(request.path_params["message_batch_id"])


def _id_in(request: Request, name: str) -> UUID | None:
    text = request.query_params.get(name)
    return None if text is None else read_message_batch_id(text, param=name)


def _limit(request: Request) -> int:
    text = request.query_params.get("limit", str(DEFAULT_LIMIT))
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= MAX_LIMIT):
        raise InvalidRequest(f"'limit' must be 1 to {MAX_LIMIT}.", param="limit")
    return int(text)


def _json(body: msgspec.Struct) -> Response:
    headers = {"cache-control": "no-store"}
    return Response(msgspec.json.encode(body), headers=headers, media_type="application/json")
