"""A tenant's limits: how far they are used, what is set, and what lies over it for a while."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin_ui.audit_rows import audit_row
from admin_ui.limits import (
    LABELS,
    WINDOWS,
    differences,
    laid_over,
    lines_of,
    quota_of,
    read_limits,
)
from admin_ui.pages import Pages
from admin_ui.routes.tenant import TenantDetail
from admin_ui.screens import Form, Words, errors_of, read_form, screen, see
from admin_ui.services import UiServices
from gateway.api.admin.routing import OPERATORS, VIEWERS, actor_of, admin_of
from gateway.api.errors import classify
from gateway.domain.admin import AuditFilter
from gateway.domain.page import PageRequest
from gateway.domain.quota import Quota, ScopeKind
from gateway.domain.quota_settings import QuotaState
from gateway.errors import InvalidRequest, StoreUnavailable, VersionConflict
from gateway.services.admin import WouldHave
from gateway.services.quotas.usage import LimitUse, limit_uses

_KIND: Final = ScopeKind.TENANT
SPANS: Final = (("900", "15 minutes"), ("3600", "1 hour"), ("86400", "1 day"), ("604800", "1 week"))


def tenant_limit_routes(services: UiServices, pages: Pages) -> list[Route]:
    """Declare the tab, its meters, and its forms."""
    limits = TenantLimits(services, pages)
    path = "/admin/tenants/{name}"
    return [
        screen(path, limits.show, allows=VIEWERS),
        screen(f"{path}/meters", limits.meters, allows=VIEWERS),
        screen(f"{path}/limits", limits.put, method="POST", allows=OPERATORS),
        screen(f"{path}/limits/preview", limits.preview, method="POST", allows=OPERATORS),
        screen(f"{path}/override/preview", limits.preview_over, method="POST", allows=OPERATORS),
        screen(f"{path}/override", limits.override, method="POST", allows=OPERATORS),
        screen(f"{path}/override/clear", limits.clear, method="POST", allows=OPERATORS),
    ]


class TenantLimits:
    """Show and set a tenant's limits; `context` is what its meters are drawn of."""

    def __init__(self, services: UiServices, pages: Pages) -> None:
        self._services = services
        self._pages = pages
        self._detail = TenantDetail(services, pages)

    async def show(self, request: Request) -> Response:
        return await self._show(request)

    async def meters(self, request: Request) -> Response:
        context = await self.context(request)
        return self._pages.answer(request, "tenant_meters.html", context)

    async def put(self, request: Request) -> Response:
        form = await read_form(request)
        settings = self._services.admin.quota_settings
        try:
            limits = _kept_budget((await self._state(request)).quota) | read_limits(form, _KIND)
            await settings.put(
                actor_of(request), await self._holder(request), limits, version=form.version()
            )
        except VersionConflict as exc:
            return await self._show(request, form, conflict=exc.current)
        except InvalidRequest as exc:
            return await self._show(request, form, errors_of(exc), status=classify(exc)[0])
        return self._done(request, "limits")

    async def preview(self, request: Request) -> Response:
        """Say what the last day would have met; nothing is changed."""
        form = await read_form(request)
        try:
            own = quota_of(read_limits(form, _KIND))
        except InvalidRequest as exc:
            return await self._show(request, form, errors_of(exc), status=classify(exc)[0])
        state = await self._state(request)
        quota = laid_over(await self._of_plan(request), own)
        if state.override is not None:
            quota = laid_over(quota, state.override.quota)
        return await self._show(request, form, would_have=await self._tried(request, quota))

    async def preview_over(self, request: Request) -> Response:
        """Say what the last day would have met below such an override; nothing is changed."""
        form = await read_form(request)
        try:
            over = quota_of(read_limits(form, _KIND))
        except InvalidRequest as exc:
            errors = Words({f"over-{exc.param}": exc.message})
            return await self._show(request, over=form, errors=errors, status=classify(exc)[0])
        state = await self._state(request)
        quota = laid_over(laid_over(await self._of_plan(request), state.quota), over)
        return await self._show(request, over=form, would_have=await self._tried(request, quota))

    async def override(self, request: Request) -> Response:
        form = await read_form(request)
        try:
            limits = {
                name: amount
                for name, amount in read_limits(form, _KIND).items()
                if amount is not None
            }
            if not limits:
                raise InvalidRequest("Fill in at least one limit.", param="over")
            await self._services.admin.quota_settings.override(
                actor_of(request),
                await self._holder(request),
                limits,
                ends_in_s=form.number("ends_in_s") or 0,
                reason=form.optional("reason"),
                version=form.version(),
            )
        except VersionConflict as exc:
            return await self._show(request, over=form, conflict=exc.current)
        except InvalidRequest as exc:
            errors = Words({f"over-{exc.param}": exc.message})
            return await self._show(request, over=form, errors=errors, status=classify(exc)[0])
        return self._done(request, "override")

    async def clear(self, request: Request) -> Response:
        form = await read_form(request)
        holder = await self._holder(request)
        try:
            await self._services.admin.quota_settings.clear(
                actor_of(request), holder, version=form.version()
            )
        except VersionConflict as exc:
            return await self._show(request, conflict=exc.current)
        return self._done(request, "cleared")

    async def _show(
        self,
        request: Request,
        form: Form | None = None,
        errors: Words | None = None,
        *,
        over: Form | None = None,
        status: int = 200,
        conflict: Any = None,  # the limits as they are now
        would_have: WouldHave | None = None,
    ) -> Response:
        context = await self.context(request)
        own = Words({line.name: line.own for line in context["lines"]})
        context |= {
            "values": own if form is None else form.values(),
            "over": Words() if over is None else over.values(),
            "errors": errors or Words(),
            "windows": WINDOWS,
            "spans": SPANS,
            "conflict": None,
            "would_have": would_have,
            "labels": LABELS,
        }
        if conflict is not None:
            status = 409
            sent = None if form is None else read_limits(form, _KIND)
            context["conflict"] = await self._conflict(context["tenant"].name, conflict, sent)
        return self._pages.answer(request, "tenant_limits.html", context, status=status)

    async def context(self, request: Request) -> dict[str, Any]:
        """Return a tenant's limits and how far they are used. Raises: `NotFound`."""
        context = await self._detail.head(request, "limits")
        state = await self._services.admin.quota_settings.get(await self._holder(request))
        uses = await self._uses(state)
        return context | {
            "state": state,
            "lines": lines_of(state, uses, context["tenant"].plan),
            "are_counted": uses is not None,
        }

    async def _state(self, request: Request) -> QuotaState:
        return await self._services.admin.quota_settings.get(await self._holder(request))

    async def _of_plan(self, request: Request) -> Quota:
        """Return the limits of the tenant's plan."""
        tenant = await self._services.admin.tenants.get(request.path_params["name"])
        if tenant.plan is None:
            return Quota()
        settings = self._services.admin.quota_settings
        return (await settings.get(await settings.holder(ScopeKind.PLAN, tenant.plan))).quota

    async def _tried(self, request: Request, quota: Quota) -> WouldHave:
        tenant = await self._services.admin.tenants.get(request.path_params["name"])
        return await self._services.past_limits.would_have(tenant, quota)

    async def _uses(self, state: QuotaState) -> Sequence[LimitUse] | None:
        try:
            return await limit_uses(self._services.quotas, state.effective, state.holder.tenant_id)
        except StoreUnavailable:
            return None

    async def _conflict(
        self, tenant: str, there: QuotaState, sent: dict[str, Any] | None
    ) -> dict[str, Any]:
        """Say what was changed meanwhile, by whom, and what the form would make of it."""
        found = await self._services.admin.audit.page(
            AuditFilter(object_kind="quota"), PageRequest(1), tenant=tenant
        )
        lines = []
        if sent is not None:
            lines = differences(there.quota, quota_of(sent))
        return {"lines": lines, "by": audit_row(found.data[0]) if found.data else None}

    async def _holder(self, request: Request) -> Any:  # whose limits they are
        return await self._services.admin.quota_settings.holder(
            _KIND, request.path_params["name"], within=admin_of(request).tenant_id
        )

    def _done(self, request: Request, said: str) -> Response:
        return see(f"/admin/tenants/{request.path_params['name']}", said=said)


def _kept_budget(own: Quota) -> dict[str, object]:
    """Return how a tenant is held to its plan's budget, which no field of the form says."""
    if own.budget_nano_usd is not None:
        return {}
    window = None if own.budget_window is None else own.budget_window.text
    return {"budget_window": window, "budget_hard": own.budget_hard}
