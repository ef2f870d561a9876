"""`GET /v1/usage`: what a key's tenant has used, summed.

`{"total": {...}, "rows": [...]}`, where a row has the fields of `group_by` (some of `day`, `hour`,
`model`, `key`, `tier`; all but `hour` if it is left out) and, as the total has, `input_tokens`
(`cached_tokens` among them), `output_tokens`, `nano_usd` and `requests`. `from` and `to` are dates,
both included, or times, of which `to` is not; they hold for when a request began. Without them it
is the last 30 days. `key` (a kid) and `model` choose.

No quota is asked, so that a client that is throttled can see why; a tenant has a rate of its reads,
of which this is ten.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.api.access import Authenticates, tenant_only
from gateway.api.usage_params import read_usage_params
from gateway.domain import Principal
from gateway.domain.usage import UsageBy, UsageQuestion, UsageSum
from gateway.services.ledger import UsageService
from gateway.services.loop_share import LoopShare
from gateway.services.read_rate import ReadRate

BY: Final = (UsageBy.DAY, UsageBy.HOUR, UsageBy.MODEL, UsageBy.KEY, UsageBy.TIER)
DEFAULT_BY: Final = (UsageBy.DAY, UsageBy.MODEL, UsageBy.KEY, UsageBy.TIER)


# What one costs of the reads of a tenant: it is a walk through the ledger.
READS: Final = 10
_FEW_ROWS: Final = 200


class UsageTotalsView(msgspec.Struct, kw_only=True):
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    nano_usd: int
    requests: int


class UsageRowView(msgspec.Struct, kw_only=True):
    day: str | msgspec.UnsetType = msgspec.UNSET
    hour: str | msgspec.UnsetType = msgspec.UNSET
    model: str | msgspec.UnsetType = msgspec.UNSET
    key: str | msgspec.UnsetType = msgspec.UNSET
    tier: str | msgspec.UnsetType = msgspec.UNSET
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    nano_usd: int
    requests: int


Row = TypeVar("Row", bound=UsageRowView)


class UsageView(msgspec.Struct):
    total: UsageTotalsView
    rows: list[UsageRowView]


def usage_routes(
    usage: UsageService,
    auth: Authenticates,
    reads: ReadRate | None = None,
    loop_share: LoopShare | None = None,
) -> list[Route]:
    """Declare the route; mount it in an application that handles `GatewayError`."""

    async def show(request: Request) -> Response:
        asked = read_usage_params(request.query_params, by=BY, default=DEFAULT_BY, more=set())
        principal: Principal = request.state.principal
        if reads is not None:
            await reads.admit(principal.tenant_id, READS)
        question = await usage.question(
            asked, organisation_id=principal.organisation_id, tenant_id=principal.tenant_id
        )
        return await usage_answer(usage, question, UsageView, UsageRowView)

    return [tenant_only("/v1/usage", show, auth, method="GET", loop_share=loop_share)]


async def usage_answer(
    usage: UsageService, question: UsageQuestion, document: type[msgspec.Struct], row: type[Row]
) -> Response:
    """Answer with a document of the total and its rows; one that is long is made on a thread."""
    total, sums = await usage.answer(question)

    def encoded() -> bytes:
        view = msgspec.convert(total, UsageTotalsView, from_attributes=True)
        return msgspec.json.encode(document(view, usage_rows(row, question.by, sums)))

    body = encoded() if len(sums) <= _FEW_ROWS else await asyncio.to_thread(encoded)
    headers = {"cache-control": "no-store"}
    return Response(body, headers=headers, media_type="application/json")


def usage_rows(kind: type[Row], by: Sequence[UsageBy], sums: Sequence[UsageSum]) -> list[Row]:
    """Show sums as rows of a kind."""
    names = [which.value for which in by]
    return [
        kind(
            input_tokens=one.totals.input_tokens,
            cached_tokens=one.totals.cached_tokens,
            output_tokens=one.totals.output_tokens,
            nano_usd=one.totals.nano_usd,
            requests=one.totals.requests,
            **dict(zip(names, one.of, strict=True)),
        )
        for one in sums
    ]
