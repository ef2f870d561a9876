"""The admin API of finished requests: `GET /admin/v1/requests`, and `/{id}` with what happened.

`id` is written as `x-request-id` and answers have it, `req_` or `chatcmpl-` and 32 hexadecimal
digits. A record is there within a second of the request's end, for a day; all that failed, missed a
promise, was sent back or slow have one, and a share of the others. Times within one are seconds
after it began.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.api.admin.audit import read_time
from gateway.api.admin.routing import (
    EVERYONE,
    AuthenticatesAdmins,
    admin_answer,
    admin_of,
    admin_route,
    page_answer,
    page_query,
    query,
)
from gateway.domain.request_record import Cause, RecordFilter, RequestRecord
from gateway.errors import InvalidRequest, NotFound
from gateway.services.admin import RequestRecordService

ROWS_MAX: Final = 100

_ID: Final = re.compile(r"(?:[a-z]{1,16}[_-])?([0-9a-f]{32})", re.ASCII)


class RequestView(msgspec.Struct):
    id: str
    at: datetime
    tenant: str | None
    key_id: str | None
    model: str
    tier: str
    status: int
    code: str
    outcome: str
    cause: str | None
    missed: tuple[str, ...]
    is_preempted: bool
    is_degraded: bool
    duration_s: float
    ttft_s: float | None
    output_tokens: int


class WholeRequestView(RequestView):
    details: Mapping[str, Any]


def request_routes(records: RequestRecordService, auth: AuthenticatesAdmins) -> list[Route]:
    """Declare the routes; mount them in an application that handles `GatewayError`."""

    async def page(request: Request) -> Response:
        asked, params = page_query(request, "tenant", "status", "cause", "missed", "from", "to")
        chosen = RecordFilter(
            status=_status(params.get("status")),
            cause=_cause(params.get("cause")),
            has_missed=_flag(params.get("missed")),
            since=read_time(params, "from"),
            until=read_time(params, "to"),
        )
        # A page may be shorter than was asked for; `next` goes on after it.
        asked = replace(asked, limit=min(asked.limit, ROWS_MAX))
        within = admin_of(request).tenant_id
        found = await records.page(chosen, asked, tenant=params.get("tenant"), within=within)
        return page_answer(found, lambda one: RequestView(**_fields(one)))

    async def show(request: Request) -> Response:
        query(request)
        found = _ID.fullmatch(request.path_params["id"])
        if found is None:
            raise NotFound("There is no request of such an id.", param="id")
        within = admin_of(request).tenant_id
        record = await records.get(UUID(hex=found[1]), within=within)
        return admin_answer(WholeRequestView(**_fields(record), details=record.details))

    return [
        admin_route("/requests", "GET", page, auth, allows=EVERYONE),
        admin_route("/requests/{id}", "GET", show, auth, allows=EVERYONE),
    ]


def _status(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 3):
        raise InvalidRequest("'status' must be a status code, as 429.", param="status")
    return int(text)


def _cause(text: str | None) -> Cause | None:
    try:
        return None if text is None else Cause(text)
    except ValueError:
        raise InvalidRequest(f"'cause' must be one of {', '.join(Cause)}.", param="cause") from None


def _flag(text: str | None) -> bool | None:
    if text not in (None, "true", "false"):
        raise InvalidRequest("'missed' must be true or false.", param="missed")
    return None if text is None else text == "true"


def _fields(record: RequestRecord) -> dict[str, Any]:
    return {
        "id": f"req_{record.request_id.hex}",
        "key_id": None if record.key_id is None else str(record.key_id),
        "cause": None if record.cause is None else record.cause.value,
    } | {
        name: getattr(record, name)
        for name in RequestView.__struct_fields__
        if name not in ("id", "key_id", "cause")
    }
