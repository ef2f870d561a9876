"""The admin API of limits: `/admin/v1/quotas/{kind}/{id}`, and `/override` of it.

`kind` is platform, organisation, tenant, key or plan. A tenant and a plan are named by their name,
a key by its id or kid, the platform and the organisation by `-`. `PUT` replaces all limits of a
scope's own, `PATCH` those that it names. The answer has what the scope has set, what lies over it,
and what holds for it now: the override over its own over, for a tenant, its plan's, and hard and
over a month where a budget is set and none of them says. A tenant's owner sets limits of the
tenant's keys, never the tenant's own, and not above those; what an operator has set of a key's
(`operator_set`), or laid over them, it can neither change nor cover.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.api.admin.routing import (
    EVERYONE,
    OPERATORS,
    TENANT_OWNERS,
    VIEWERS,
    AuthenticatesAdmins,
    actor_of,
    admin_answer,
    admin_body,
    admin_of,
    admin_route,
    conflicts_shown,
    named_fields,
    wanted_version,
)
from gateway.api.body import JsonBody
from gateway.domain.quota import Metric, ScopeKind
from gateway.domain.quota_settings import QuotaHolder, QuotaState, plain_quota
from gateway.services.admin import QuotaSettingsService

if TYPE_CHECKING:

    class Limits(msgspec.Struct):
        """Hold limits that were sent, as the table of limits has them; null is no limit."""

else:
    Limits = msgspec.defstruct(
        "Limits",
        [
            *((metric.value, int | msgspec.UnsetType | None, msgspec.UNSET) for metric in Metric),
            ("budget_window", str | msgspec.UnsetType | None, msgspec.UNSET),
            ("budget_hard", bool | msgspec.UnsetType | None, msgspec.UNSET),
        ],
        forbid_unknown_fields=True,
    )


class LimitChanges(Limits, forbid_unknown_fields=True):
    version: int | None = None


class NewOverride(Limits, forbid_unknown_fields=True, kw_only=True):
    ends_in_s: float
    reason: str | None = None
    version: int | None = None


class ScopeView(msgspec.Struct):
    kind: str
    id: str
    name: str


class QuotaStateView(msgspec.Struct):
    scope: ScopeView
    quota: dict[str, object]
    override: dict[str, object] | None
    effective: dict[str, object]
    version: int
    operator_set: tuple[str, ...]


def quota_routes(settings: QuotaSettingsService, auth: AuthenticatesAdmins) -> list[Route]:
    """Declare the routes; mount them in an application that handles `GatewayError`."""
    admin = _Quotas(settings)
    routes = []
    for kind in ScopeKind:
        path = f"/quotas/{kind.value}/{{id}}"
        is_of_tenant = kind in (ScopeKind.KEY, ScopeKind.TENANT)
        readers = EVERYONE if is_of_tenant else VIEWERS
        writers = TENANT_OWNERS if kind is ScopeKind.KEY else OPERATORS
        routes += [
            admin_route(path, "GET", partial(admin.show, kind), auth, allows=readers),
            admin_route(path, "PUT", partial(admin.put, kind), auth, allows=writers),
            admin_route(path, "PATCH", partial(admin.patch, kind), auth, allows=writers),
        ]
        if kind is not ScopeKind.PLAN:
            over = f"{path}/override"
            lay, clear = partial(admin.override, kind), partial(admin.clear, kind)
            routes += [
                admin_route(over, "PUT", lay, auth, allows=writers),
                admin_route(over, "DELETE", clear, auth, allows=writers),
            ]
    return routes


class _Quotas:
    def __init__(self, settings: QuotaSettingsService) -> None:
        self._settings = settings
        self._changes = JsonBody(LimitChanges)
        self._override = JsonBody(NewOverride)

    async def show(self, kind: ScopeKind, request: Request) -> Response:
        return admin_answer(
            _state_view(await self._settings.get(await self._holder(kind, request)))
        )

    async def put(self, kind: ScopeKind, request: Request) -> Response:
        return await self._set(kind, request, self._settings.put)

    async def patch(self, kind: ScopeKind, request: Request) -> Response:
        return await self._set(kind, request, self._settings.patch)

    async def _set(
        self, kind: ScopeKind, request: Request, change: Callable[..., Awaitable[QuotaState]]
    ) -> Response:
        raw = await admin_body(request)
        body = self._changes.decode(raw)
        holder = await self._holder(kind, request)
        with conflicts_shown(_state_view, raw):
            state = await change(
                actor_of(request),
                holder,
                named_fields(body, "version"),
                version=wanted_version(request, body.version),
            )
        return admin_answer(_state_view(state))

    async def override(self, kind: ScopeKind, request: Request) -> Response:
        raw = await admin_body(request)
        body = self._override.decode(raw)
        holder = await self._holder(kind, request)
        with conflicts_shown(_state_view, raw):
            state = await self._settings.override(
                actor_of(request),
                holder,
                named_fields(body, "version", "ends_in_s", "reason"),
                ends_in_s=body.ends_in_s,
                reason=body.reason,
                version=wanted_version(request, body.version),
            )
        return admin_answer(_state_view(state))

    async def clear(self, kind: ScopeKind, request: Request) -> Response:
        holder = await self._holder(kind, request)
        with conflicts_shown(_state_view):
            version = wanted_version(request)
            state = await self._settings.clear(actor_of(request), holder, version=version)
        return admin_answer(_state_view(state))

    async def _holder(self, kind: ScopeKind, request: Request) -> QuotaHolder:
        within = admin_of(request).tenant_id
        return await self._settings.holder(kind, request.path_params["id"], within=within)


def _state_view(state: QuotaState) -> QuotaStateView:
    scope, over = state.holder.scope, state.override
    override = None
    if over is not None:
        override = {
            **plain_quota(over.quota),
            "ends_at": over.ends_at,
            "reason": over.reason,
            "is_operators": over.is_operators,
        }
    return QuotaStateView(
        scope=ScopeView(scope.kind.value, str(scope.id), state.holder.name),
        quota=plain_quota(state.quota),
        override=override,
        effective=plain_quota(state.effective.quota.spelled),
        version=state.version,
        operator_set=state.operator_set,
    )
