"""`GET /admin/v1/quotas/{kind}/{id}/usage`: how far the limits of a scope are used now.

Answers `{"scope": {...}, "limits": [{"metric", "limit", "used", "held", "remaining",
"resets_at"}]}`. What is held belongs to requests that run and is used or given back when they end.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.api.admin.routing import (
    EVERYONE,
    VIEWERS,
    AuthenticatesAdmins,
    admin_answer,
    admin_of,
    admin_route,
)
from gateway.domain.quota import ScopeKind
from gateway.services.admin import QuotaSettingsService
from gateway.services.quotas import LimitUse, QuotaService, limit_uses


def quota_usage_routes(
    settings: QuotaSettingsService, quotas: QuotaService, auth: AuthenticatesAdmins
) -> list[Route]:
    """Declare the routes; mount them in an application that handles `GatewayError`."""

    async def show(kind: ScopeKind, request: Request) -> Response:
        within = admin_of(request).tenant_id
        holder = await settings.holder(kind, request.path_params["id"], within=within)
        state = await settings.get(holder)
        uses = await limit_uses(quotas, state.effective, holder.tenant_id)
        scope = {"kind": kind.value, "id": str(holder.scope.id), "name": holder.name}
        return admin_answer({"scope": scope, "limits": [_view(use) for use in uses]})

    return [
        admin_route(
            f"/quotas/{kind.value}/{{id}}/usage",
            "GET",
            partial(show, kind),
            auth,
            allows=EVERYONE if kind in (ScopeKind.KEY, ScopeKind.TENANT) else VIEWERS,
        )
        for kind in ScopeKind
        if kind is not ScopeKind.PLAN
    ]


def _view(use: LimitUse) -> dict[str, object]:
    at = None if use.resets_at_s is None else datetime.fromtimestamp(use.resets_at_s, UTC)
    return {
        "metric": use.metric.value,
        "limit": use.limit,
        "used": use.used,
        "held": use.held,
        "remaining": use.remaining,
        "resets_at": at,
    }
