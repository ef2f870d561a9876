"""The admin API of tenants: `/admin/v1/tenants`.

`max_tier`, `models`, `cidrs` and `max_keys` are ceilings of all keys of a tenant, in force whenever
one is used; its owner sees them, and operators set them. null is no ceiling.
"""

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
from gateway.domain import Tenant, TenantSlo, Tier
from gateway.domain.tenant_archive import ArchivedTenant
from gateway.services.admin import TenantArchive, TenantService


class NewTenant(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    weight: float = 1.0
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    max_gap_ms: float | None = None
    plan: str | None = None
    max_tier: Tier = Tier.PRIORITY
    models: list[str] | None = None
    cidrs: list[str] | None = None
    max_keys: int | None = None
    org: str | None = None


class TenantChanges(msgspec.Struct, forbid_unknown_fields=True):
    """Hold what is to change; an absent field stays, null takes a promise, plan or org back."""

    weight: float | msgspec.UnsetType = msgspec.UNSET
    ttft_ms: float | msgspec.UnsetType | None = msgspec.UNSET
    tpot_ms: float | msgspec.UnsetType | None = msgspec.UNSET
    max_gap_ms: float | msgspec.UnsetType | None = msgspec.UNSET
    plan: str | msgspec.UnsetType | None = msgspec.UNSET
    max_tier: Tier | msgspec.UnsetType = msgspec.UNSET
    models: list[str] | msgspec.UnsetType | None = msgspec.UNSET
    cidrs: list[str] | msgspec.UnsetType | None = msgspec.UNSET
    max_keys: int | msgspec.UnsetType | None = msgspec.UNSET
    trace_prompts: bool | msgspec.UnsetType = msgspec.UNSET
    org: str | msgspec.UnsetType | None = msgspec.UNSET
    version: int | None = None


class TenantView(msgspec.Struct):
    id: str
    name: str
    weight: float
    ttft_ms: float | None
    tpot_ms: float | None
    max_gap_ms: float | None
    plan: str | None
    org: str | None
    max_tier: Tier
    models: tuple[str, ...] | None
    cidrs: tuple[str, ...] | None
    max_keys: int | None
    trace_prompts: bool
    version: int
    created_at: datetime


class ArchivedView(msgspec.Struct):
    """Show a tenant that was archived: what its records are found by, and what it ended."""

    id: str
    name: str
    archived_at: datetime
    revoked_keys: int
    revoked_tokens: int


def tenant_routes(
    tenants: TenantService, archive: TenantArchive, auth: AuthenticatesAdmins
) -> list[Route]:
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
            actor_of(request),
            body.name,
            weight=body.weight,
            slo=slo,
            plan=body.plan,
            ceilings=named_fields(body),
            org=body.org,
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

    async def remove(request: Request) -> Response:
        name, version = request.path_params["name"], wanted_version(request)
        with conflicts_shown(tenant_view):
            done = await archive.archive(actor_of(request), name, version=version)
        return admin_answer(_archived_view(done))

    return [
        admin_route("/tenants", "GET", page, auth, allows=EVERYONE),
        admin_route("/tenants", "POST", create, auth, allows=OPERATORS),
        admin_route("/tenants/{name}", "GET", show, auth, allows=EVERYONE),
        admin_route("/tenants/{name}", "PATCH", update, auth, allows=OPERATORS),
        admin_route("/tenants/{name}", "DELETE", remove, auth, allows=OPERATORS),
    ]


def _archived_view(done: ArchivedTenant) -> ArchivedView:
    assert done.tenant.archived_at is not None, "it has just been archived"
    return ArchivedView(
        id=str(done.tenant.id),
        name=done.tenant.name,
        archived_at=done.tenant.archived_at,
        revoked_keys=len(done.ended_keys),
        revoked_tokens=len(done.ended_tokens),
    )


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
        org=tenant.org,
        max_tier=tenant.ceilings.max_tier,
        models=tenant.ceilings.models,
        cidrs=tenant.ceilings.cidrs,
        max_keys=tenant.ceilings.max_keys,
        trace_prompts=tenant.trace_prompts,
        version=tenant.version,
        created_at=tenant.created_at,
    )
