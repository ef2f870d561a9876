"""The admin API of items that killed their workers: `/admin/v1/batches/dead`, and `/requeue`."""

from __future__ import annotations

from datetime import datetime

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.api.admin.routing import (
    OPERATORS,
    VIEWERS,
    AuthenticatesAdmins,
    actor_of,
    admin_answer,
    admin_body,
    admin_route,
    page_answer,
    page_query,
)
from gateway.api.batch_ids import batch_name, read_batch_id
from gateway.api.body import JsonBody
from gateway.domain.batch import DeadItem
from gateway.services.admin import DeadItemService


class Requeue(msgspec.Struct, forbid_unknown_fields=True):
    """Name what is to run again: of a batch these lines, or without them all that wait."""

    batch: str
    lines: list[int] | None = None


class DeadItemView(msgspec.Struct):
    tenant: str
    batch: str
    line: int
    custom_id: str
    deaths: int
    since: datetime


def dead_item_routes(items: DeadItemService, auth: AuthenticatesAdmins) -> list[Route]:
    """Declare the routes; mount them in an application that handles `GatewayError`."""
    wanted = JsonBody(Requeue)

    async def page(request: Request) -> Response:
        asked, params = page_query(request, "tenant", "batch")
        batch = params.get("batch")
        batch_id = None if batch is None else read_batch_id(batch, param="batch")
        found = await items.page(asked, tenant=params.get("tenant"), batch_id=batch_id)
        return page_answer(found, _view)

    async def requeue(request: Request) -> Response:
        body = wanted.decode(await admin_body(request))
        batch_id = read_batch_id(body.batch, param="batch")
        lines = await items.requeue(actor_of(request), batch_id, body.lines)
        return admin_answer({"batch": body.batch, "lines": lines})

    return [
        admin_route("/batches/dead", "GET", page, auth, allows=VIEWERS),
        admin_route("/batches/dead/requeue", "POST", requeue, auth, allows=OPERATORS),
    ]


def _view(item: DeadItem) -> DeadItemView:
    return DeadItemView(
        tenant=item.tenant,
        batch=batch_name(item.batch_id),
        line=item.line,
        custom_id=item.custom_id,
        deaths=item.num_deaths,
        since=item.since,
    )
