"""The admin API of tenants: `/admin/v1/tenants`."""

from __future__ import annotations

from datetime import datetime

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.api.admin.routing import (
    EVERYONE,
    OPERATORS,
    AuthenticatesAdmins,
    actor_of,
    admin_answer,
    admin_body,
    admin_of,
    admin_route,
    conflicts_shown,
    named_fields,
    page_answer,
    page_query,
    wanted_version,
)
from gateway.api.body import JsonBody
from gateway.domain import Tenant, TenantSlo
from gateway.services.admin import TenantService


class NewTenant(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    weight: float = 1.0
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    max_gap_ms: float | None = None
    plan: str | None = None


class TenantChanges(msgspec.Struct, forbid_unknown_fields=True):
    """Hold what is to change; a field that is absent stays, null takes a promise or plan back."""

    weight: float | msgspec.UnsetType = msgspec.UNSET
    ttft_ms: float | msgspec.UnsetType | None = msgspec.UNSET
    tpot_ms: float | msgspec.UnsetType | None = msgspec.UNSET
    max_gap_ms: float | msgspec.UnsetType | None = msgspec.UNSET
    plan: str | msgspec.UnsetType | None = msgspec.UNSET
    version: int | None = None


class TenantView(msgspec.Struct):
    id: str
    name: str
    weight: float
    ttft_ms: float | None
    tpot_ms: float | None
    max_gap_ms: float | None
    plan: str | None
    version: int
    created_at: datetime


def tenant_routes(tenants: TenantService, auth: AuthenticatesAdmins) -> list[Route]:
    """Declare the routes; mount them in an application that handles `GatewayError`."""
    new_tenant, tenant_changes = JsonBody(NewTenant), JsonBody(TenantChanges)

    async def page(request: Request) -> Response:
        asked, _ = page_query(request)
        within = admin_of(request).tenant_id
        return page_answer(await tenants.page(asked, within=within), tenant_view)

    async def create(request: Request) -> Response:
        body = new_tenant.decode(await admin_body(request))
        slo = TenantSlo(body.ttft_ms, body.tpot_ms, body.max_gap_ms)
        tenant = await tenants.create(
            actor_of(request), body.name, weight=body.weight, slo=slo, plan=body.plan
        )
        return admin_answer(tenant_view(tenant), 201)

    async def show(request: Request) -> Response:
        within = admin_of(request).tenant_id
        tenant = await tenants.get(request.path_params["name"], within=within)
        return admin_answer(tenant_view(tenant))

    async def update(request: Request) -> Response:
        raw = await admin_body(request)
        body = tenant_changes.decode(raw)
        with conflicts_shown(tenant_view, raw):
            tenant = await tenants.update(
                actor_of(request),
                request.path_params["name"],
                named_fields(body, "version"),
                version=wanted_version(request, body.version),
            )
        return admin_answer(tenant_view(tenant))

    return [
        admin_route("/tenants", "GET", page, auth, allows=EVERYONE),
        admin_route("/tenants", "POST", create, auth, allows=OPERATORS),
        admin_route("/tenants/{name}", "GET", show, auth, allows=EVERYONE),
        admin_route("/tenants/{name}", "PATCH", update, auth, allows=OPERATORS),
    ]


def tenant_view(tenant: Tenant) -> TenantView:
    """Show a tenant."""
    return TenantView(
        id=str(tenant.id),
        name=tenant.name,
        weight=tenant.weight,
        ttft_ms=tenant.slo.ttft_ms,
        tpot_ms=tenant.slo.tpot_ms,
        max_gap_ms=tenant.slo.max_gap_ms,
        plan=tenant.plan,
        version=tenant.version,
        created_at=tenant.created_at,
    )
