"""The admin API of everything at once: `/admin/v1/apply`, and `/admin/v1/apply/plan`.

The body says what plans, prices, limits, tenants and keys are to be; what it does not name stays.
A table of limits is whole: what is not named in it is no limit. The answer has what changes of
each, with what was and what is to be, and the `fingerprint` of that plan. It is made in one
transaction or not at all. With a `fingerprint` it is made as that plan or refused with 409
`plan_changed` and the present plan in `current`. A client that leaves before the end has changed
nothing. Tokens of new keys are in the answer, this once. A number with a fraction may be a string,
as a body may hold few that are none.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.api.admin.quotas import Limits
from gateway.api.admin.routing import (
    OPERATORS,
    VIEWERS,
    AdminEndpoint,
    AuthenticatesAdmins,
    actor_of,
    admin_answer,
    admin_route,
    named_fields,
)
from gateway.api.body import ClientGone, JsonBody, read_body
from gateway.domain import Tier
from gateway.domain.desired import SAME, ChangePlan, Desired
from gateway.domain.quota import Metric, ScopeKind
from gateway.errors import InvalidRequest, PlanChanged
from gateway.services.admin import Applied, ApplyService, placed, wanted, wanted_key, wanted_tenant
from gateway.turns import let_go

_UNSET: Final = msgspec.UNSET
_OF_LIFE: Final = ("quota", "expires_in_s", "expires_at")
# Collections of younger objects before the older are looked at.
_NEVER: Final = 1 << 30
_NUMBERS: Final = ("weight", "ttft_ms", "tpot_ms", "max_gap_ms")


class WantedPrice(msgspec.Struct, forbid_unknown_fields=True):
    input_usd_per_mtok: Decimal | msgspec.UnsetType = _UNSET
    cached_usd_per_mtok: Decimal | msgspec.UnsetType = _UNSET
    output_usd_per_mtok: Decimal | msgspec.UnsetType = _UNSET
    priority_multiplier: Decimal | msgspec.UnsetType = _UNSET
    default_multiplier: Decimal | msgspec.UnsetType = _UNSET
    flex_multiplier: Decimal | msgspec.UnsetType = _UNSET
    batch_multiplier: Decimal | msgspec.UnsetType = _UNSET


class WantedKey(msgspec.Struct, forbid_unknown_fields=True):
    max_tier: Tier | msgspec.UnsetType = _UNSET
    models: list[str] | msgspec.UnsetType | None = _UNSET
    cidrs: list[str] | msgspec.UnsetType | None = _UNSET
    allows_batch: bool | msgspec.UnsetType = _UNSET
    admin_read: bool | msgspec.UnsetType = _UNSET
    expires_in_s: float | str | None = None
    expires_at: datetime | None = None
    quota: Limits | None = None


class WantedTenant(msgspec.Struct, forbid_unknown_fields=True):
    weight: float | str | msgspec.UnsetType = _UNSET
    ttft_ms: float | str | msgspec.UnsetType | None = _UNSET
    tpot_ms: float | str | msgspec.UnsetType | None = _UNSET
    max_gap_ms: float | str | msgspec.UnsetType | None = _UNSET
    plan: str | msgspec.UnsetType | None = _UNSET
    org: str | msgspec.UnsetType | None = _UNSET
    max_tier: Tier | msgspec.UnsetType = _UNSET
    models: list[str] | msgspec.UnsetType | None = _UNSET
    cidrs: list[str] | msgspec.UnsetType | None = _UNSET
    max_keys: int | msgspec.UnsetType | None = _UNSET
    quota: Limits | None = None
    keys: dict[str, WantedKey] = {}


class Wanted(msgspec.Struct, forbid_unknown_fields=True):
    plans: dict[str, Limits] = {}
    prices: dict[str, WantedPrice] = {}
    organisation: Limits | None = None
    platform: Limits | None = None
    tenants: dict[str, WantedTenant] = {}
    fingerprint: str | None = None


class ChangeView(msgspec.Struct):
    sign: str
    subject: str
    details: list[tuple[str, Any, Any]]


class PlanView(msgspec.Struct):
    fingerprint: str
    changes: list[ChangeView]
    num_to_do: int
    not_named: list[str]


class NewKeyView(msgspec.Struct):
    tenant: str
    name: str
    kid: str
    key: str


class AppliedView(msgspec.Struct):
    plan: PlanView
    keys: list[NewKeyView]


def apply_routes(service: ApplyService, auth: AuthenticatesAdmins) -> list[Route]:
    """Declare the routes; mount them in an application that handles `GatewayError`."""
    body = JsonBody(Wanted)

    async def plan(request: Request, raw: bytes, large: list[list[Any]]) -> Response:
        # On a thread, as it may be megabytes.
        desired, _ = await asyncio.to_thread(_read, body, raw)
        large.append(desired.tenants)
        planned = await service.plan(desired)
        large.append(planned.changes)
        return await asyncio.to_thread(lambda: admin_answer(_plan_view(planned)))

    async def apply(request: Request, raw: bytes, large: list[list[Any]]) -> Response:
        desired, fingerprint = await asyncio.to_thread(_read, body, raw)
        large.append(desired.tenants)

        async def agreed() -> None:
            # Nobody would see the tokens.
            if await request.is_disconnected():
                raise ClientGone

        try:
            done = await service.apply(
                actor_of(request), desired, fingerprint=fingerprint, agreed=agreed
            )
        except PlanChanged as exc:
            present = exc.current
            assert isinstance(present, ChangePlan), "it is what would have been done"
            large.append(present.changes)
            raise PlanChanged(await asyncio.to_thread(_plan_view, present)) from None
        large.append(done.plan.changes)
        return await asyncio.to_thread(lambda: admin_answer(_applied_view(done)))

    by_itself = _ByItself()
    return [
        admin_route("/apply", "POST", by_itself.of(apply), auth, allows=OPERATORS),
        # It reads alone, and what it is to read takes a body.
        admin_route("/apply/plan", "POST", by_itself.of(plan), auth, allows=VIEWERS),
    ]


class _ByItself:
    """Have one large request at a time, in which the collector looks at what is new alone.

    What is wanted is some hundred thousand objects, none of them in a circle: walking through them
    would hold the event loop for a tenth of a second, again and again. What is written leaves tens
    of thousands in circles, which are found soon after they are made, a few at a time, as all of
    them at the end would hold it for 40 ms. An endpoint names what of it is large, which is let go
    by turns.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    def of(
        self, endpoint: Callable[[Request, bytes, list[list[Any]]], Awaitable[Response]]
    ) -> AdminEndpoint:
        async def alone(request: Request) -> Response:
            # First, as a client may take a minute to send it.
            raw = await read_body(request.scope, request.receive)
            async with self._turn:
                large: list[list[Any]] = []
                young, *older = gc.get_threshold()
                gc.set_threshold(young, _NEVER, _NEVER)
                try:
                    return await endpoint(request, raw, large)
                finally:
                    try:
                        for held in large:
                            await let_go(held)
                    finally:
                        # Also where its client left meanwhile, or nobody would collect again.
                        gc.set_threshold(young, *older)

        return alone


def _read(decoder: JsonBody[Wanted], raw: bytes) -> tuple[Desired, str | None]:
    """Decode and check all of a body. Raises: `InvalidRequest` with the place."""
    body = decoder.decode(raw)
    one_each = {ScopeKind.ORGANISATION: body.organisation, ScopeKind.PLATFORM: body.platform}
    desired = wanted(
        {name: _limits(limits) for name, limits in body.plans.items()},
        {model: named_fields(price) for model, price in body.prices.items()},
        {kind: _limits(limits) for kind, limits in one_each.items() if limits is not None},
        [
            wanted_tenant(
                name,
                _of_tenant(name, tenant),
                None if tenant.quota is None else _limits(tenant.quota),
                [
                    wanted_key(
                        name,
                        key_name,
                        named_fields(key, *_OF_LIFE),
                        None if key.quota is None else _limits(key.quota),
                        expires_in_s=_number(key.expires_in_s, "expires_in_s", name, key_name),
                        expires_at=key.expires_at,
                    )
                    for key_name, key in tenant.keys.items()
                ],
            )
            for name, tenant in body.tenants.items()
        ],
    )
    return desired, body.fingerprint


def _of_tenant(name: str, tenant: WantedTenant) -> dict[str, Any]:
    fields = named_fields(tenant, "quota", "keys")
    return fields | {
        field: _number(fields[field], field, name) for field in _NUMBERS if field in fields
    }


def _number(value: float | str | None, param: str, *path: str) -> float | None:
    if not isinstance(value, str):
        return value
    with placed("tenants", *path):
        try:
            return float(value)
        except ValueError:
            raise InvalidRequest(f"'{param}' must be a number.", param=param) from None


def _limits(limits: Limits) -> dict[str, Any]:
    """Return all limits of a table; what it does not name is none."""
    names = [*(metric.value for metric in Metric), "budget_window", "budget_hard"]
    return dict.fromkeys(names) | named_fields(limits)


def _applied_view(done: Applied) -> AppliedView:
    keys = [
        NewKeyView(one.key.tenant, one.key.name, one.key.kid, one.token) for one in done.issued()
    ]
    return AppliedView(_plan_view(done.plan), keys)


def _plan_view(plan: ChangePlan) -> PlanView:
    return PlanView(
        plan.fingerprint,
        [
            ChangeView(
                one.sign,
                one.subject,
                [(detail.field, detail.before, detail.after) for detail in one.details],
            )
            for one in plan.changes
        ],
        sum(one.sign != SAME for one in plan.changes),
        list(plan.others),
    )
