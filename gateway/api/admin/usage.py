"""`GET /admin/v1/usage`: what all tenants have used, or one.

As `GET /v1/usage` (see `gateway.api.usage`), with `tenant` to group by and, by its name, to choose.
With `format=csv` it is a file for a spreadsheet (RFC 4180, a header first), however large. An admin
of a tenant sees that tenant.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from dataclasses import astuple
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gateway.api.admin.routing import (
    EVERYONE,
    AuthenticatesAdmins,
    admin_answer,
    admin_of,
    admin_route,
)
from gateway.api.usage import DEFAULT_BY, UsageRowView, UsageTotalsView, totals_view, usage_rows
from gateway.api.usage_params import read_usage_params
from gateway.domain.usage import UsageBy, UsageQuestion, UsageSum
from gateway.errors import InvalidRequest
from gateway.services.ledger import UsageService

_BY: Final = tuple(UsageBy)
_DEFAULT_BY: Final = (UsageBy.DAY, UsageBy.TENANT, *DEFAULT_BY[1:])
_SUMS: Final = ("input_tokens", "cached_tokens", "output_tokens", "nano_usd", "requests")
# What makes a spreadsheet take a cell for a formula.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


class TenantUsageRowView(UsageRowView, kw_only=True):
    tenant: str | msgspec.UnsetType = msgspec.UNSET


class TenantUsageView(msgspec.Struct):
    total: UsageTotalsView
    rows: list[TenantUsageRowView]


def admin_usage_routes(usage: UsageService, auth: AuthenticatesAdmins) -> list[Route]:
    """Declare the route; mount it in an application that handles `GatewayError`."""

    async def show(request: Request) -> Response:
        params = request.query_params
        asked = read_usage_params(params, by=_BY, default=_DEFAULT_BY, more={"tenant", "format"})
        kind = params.get("format", "json")
        if kind not in ("json", "csv"):
            raise InvalidRequest("'format' must be json or csv.", param="format")
        admin = admin_of(request)
        question = await usage.question(
            asked, organisation_id=admin.organisation_id, tenant_id=admin.tenant_id
        )
        if kind == "csv":
            return UsageCsv(usage, question)
        total, sums = await usage.answer(question)
        rows = usage_rows(TenantUsageRowView, question.by, sums)
        return admin_answer(TenantUsageView(totals_view(total), rows))

    return [admin_route("/usage", "GET", show, auth, allows=EVERYONE)]


class UsageCsv(Response):
    """Send sums as they come from the store; what is read from it is closed however this ends."""

    media_type = "text/csv"

    def __init__(self, usage: UsageService, question: UsageQuestion) -> None:
        super().__init__(
            headers={
                "cache-control": "no-store",
                "content-disposition": 'attachment; filename="usage.csv"',
            }
        )
        del self.headers["content-length"]  # nobody knows it yet
        self._usage = usage
        self._question = question

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        header = [*(which.value for which in self._question.by), *_SUMS]
        async with aclosing(self._usage.batches(self._question)) as batches:
            # Before the answer begins, so that a store that is away is an error, not half a file.
            first = await anext(batches, None) or []
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            await _send_rows(send, [header, *map(_cells, first)])
            async for batch in batches:
                await _send_rows(send, map(_cells, batch))
        await send({"type": "http.response.body", "body": b""})


async def _send_rows(send: Send, rows: Iterable[Sequence[object]]) -> None:
    text = io.StringIO()
    csv.writer(text).writerows(rows)  # the standard library's default is RFC 4180
    body = text.getvalue().encode()
    await send({"type": "http.response.body", "body": body, "more_body": True})


def _cells(one: UsageSum) -> list[object]:
    return [*map(_harmless, one.of), *astuple(one.totals)]


def _harmless(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text
