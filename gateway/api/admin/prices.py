"""The admin API of prices: `/admin/v1/prices`.

A price is a version: `POST` adds the next, and what was priced before keeps its own. USD are for a
million tokens. Numbers are decimals, as JSON's numbers or as strings, taken digit by digit and
answered as strings: they never pass through binary fractions.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

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
from gateway.api.body import JsonBody
from gateway.domain.price import Price, readable_price
from gateway.errors import InvalidRequest
from gateway.services.ledger import PriceService


class NewPrice(msgspec.Struct, forbid_unknown_fields=True):
    model: str
    input_usd_per_mtok: Decimal
    output_usd_per_mtok: Decimal
    cached_usd_per_mtok: Decimal | None = None
    priority_multiplier: Decimal = Decimal(2)
    default_multiplier: Decimal = Decimal(1)
    flex_multiplier: Decimal = Decimal("0.5")
    batch_multiplier: Decimal = Decimal("0.5")


class PriceView(msgspec.Struct):
    id: str
    model: str
    version: int
    effective_at: datetime
    input_usd_per_mtok: str
    cached_usd_per_mtok: str
    output_usd_per_mtok: str
    priority_multiplier: str
    default_multiplier: str
    flex_multiplier: str
    batch_multiplier: str


def price_routes(prices: PriceService, auth: AuthenticatesAdmins) -> list[Route]:
    """Declare the routes; mount them in an application that handles `GatewayError`."""
    new_price = JsonBody(NewPrice)

    async def page(request: Request) -> Response:
        asked, params = page_query(request, "all")
        every = params.get("all", "false")
        if every not in ("true", "false"):
            raise InvalidRequest("'all' must be true or false.", param="all")
        return page_answer(await prices.page(asked, every_version=every == "true"), _price_view)

    async def create(request: Request) -> Response:
        body = new_price.decode(await admin_body(request))
        price = await prices.create(
            actor_of(request),
            body.model,
            input_usd=body.input_usd_per_mtok,
            cached_usd=body.cached_usd_per_mtok,
            output_usd=body.output_usd_per_mtok,
            multipliers={
                "priority": body.priority_multiplier,
                "default": body.default_multiplier,
                "flex": body.flex_multiplier,
                "batch": body.batch_multiplier,
            },
        )
        return admin_answer(_price_view(price), 201)

    async def show(request: Request) -> Response:
        return admin_answer(_price_view(await prices.get(request.path_params["model"])))

    return [
        admin_route("/prices", "GET", page, auth, allows=VIEWERS),
        admin_route("/prices", "POST", create, auth, allows=OPERATORS),
        # A model's name may hold slashes.
        admin_route("/prices/{model:path}", "GET", show, auth, allows=VIEWERS),
    ]


def _price_view(price: Price) -> PriceView:
    return PriceView(
        id=str(price.id),
        model=price.model,
        version=price.version,
        effective_at=price.effective_at,
        **readable_price(price),
    )
