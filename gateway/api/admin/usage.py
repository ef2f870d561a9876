"""`GET /admin/v1/usage`: what all tenants have used, or one.

As `GET /v1/usage` (see `gateway.api.usage`), with `tenant` to group by and, by its name, to choose.
With `format=csv` it is a file for a spreadsheet (RFC 4180, a header first), collected on the
server's disk before its first byte is sent. An admin of a tenant sees that tenant.

A whole export is sent within `SEND_S`, or its connection ends: a client that takes a byte now and
then may not keep a file here for ever.
"""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import Sequence
from contextlib import suppress
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
    admin_of,
    admin_route,
)
from gateway.api.usage import DEFAULT_BY, READS, UsageRowView, UsageTotalsView, usage_answer
from gateway.api.usage_params import read_usage_params
from gateway.domain.usage import UsageBy, UsageQuestion, UsageSum
from gateway.errors import InvalidRequest
from gateway.services.ledger import UsageService

_BY: Final = tuple(UsageBy)
_DEFAULT_BY: Final = (UsageBy.DAY, UsageBy.TENANT, *DEFAULT_BY[1:])
_SUMS: Final = ("input_tokens", "cached_tokens", "output_tokens", "nano_usd", "requests")
SEND_S: Final = 600.0
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
        return await usage_answer(usage, question, TenantUsageView, TenantUsageRowView)

    return [admin_route("/usage", "GET", show, auth, allows=EVERYONE, reads=READS)]


class UsageCsv(Response):
    """Collect sums into a file, then send that; it is gone however this ends."""

    media_type = "text/csv"

    def __init__(
        self, usage: UsageService, question: UsageQuestion, *, send_s: float = SEND_S
    ) -> None:
        super().__init__(
            headers={
                "cache-control": "no-store",
                "content-disposition": 'attachment; filename="usage.csv"',
            }
        )
        self._usage = usage
        self._question = question
        self._send_s = send_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._usage.export(self._question, self._lines) as export:
            self.headers["content-length"] = str(export.size_bytes)
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            with suppress(TimeoutError):
                # What is left unsent ends the connection, as its length was told.
                async with asyncio.timeout(self._send_s):
                    await send(start)
                    async for piece in export.pieces():
                        await send({"type": "http.response.body", "body": piece, "more_body": True})
                    await send({"type": "http.response.body", "body": b""})

    def _lines(self, batch: Sequence[UsageSum]) -> bytes:
        """Write a batch; what comes before the first is the header."""
        text = io.StringIO()
        lines = csv.writer(text)  # the standard library's default is RFC 4180
        if batch:
            lines.writerows(map(_cells, batch))
        else:
            lines.writerow([*(which.value for which in self._question.by), *_SUMS])
        return text.getvalue().encode()


def _cells(one: UsageSum) -> list[object]:
    return [*map(_harmless, one.of), *astuple(one.totals)]


def _harmless(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text
