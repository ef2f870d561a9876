"""One tenant: its standing, and a tab each for limits, keys, usage, requests, settings, audit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin_ui.audit_rows import audit_row
from admin_ui.day_bars import day_bars
from admin_ui.navigation import PORTAL
from admin_ui.pages import Pages
from admin_ui.predicted_share import Predicted, predicted_shares
from admin_ui.screens import Form, Words, errors_of, listed, page_asked, read_form, screen, see
from admin_ui.services import UiServices
from gateway.api.admin.routing import OPERATORS, TENANT_OWNERS, VIEWERS, actor_of, admin_of
from gateway.api.errors import classify
from gateway.domain import Tenant, Tier
from gateway.domain.admin import AuditFilter
from gateway.domain.page import PageRequest
from gateway.domain.request_record import RecordFilter
from gateway.domain.usage import UsageBy
from gateway.errors import Conflict, InvalidRequest, NotFound, VersionConflict
from gateway.services.ledger.usage import UsageAsked

_CHANGES: Final = ("weight", "ttft_ms", "tpot_ms", "max_gap_ms", "plan", "org", "max_tier")
_USAGE_DAYS: Final = 30
_USAGE_BY: Final = ((UsageBy.DAY,), (UsageBy.MODEL, UsageBy.KEY))


def tenant_detail_routes(services: UiServices, pages: Pages) -> list[Route]:
    """Declare the tabs, and the forms of the settings."""
    detail = TenantDetail(services, pages)
    path = "/admin/tenants/{name}"
    return [
        screen(f"{path}/keys", detail.keys, allows=VIEWERS),
        screen(f"{path}/usage", detail.usage, allows=VIEWERS),
        screen(f"{path}/requests", detail.requests, allows=VIEWERS),
        screen(f"{path}/audit", detail.audit, allows=VIEWERS),
        screen(f"{path}/settings", detail.settings, allows=VIEWERS),
        screen(f"{path}/settings", detail.change, method="POST", allows=OPERATORS),
        screen(f"{path}/settings/preview", detail.preview, method="POST", allows=OPERATORS),
        screen(f"{path}/archive", detail.archive, method="POST", allows=OPERATORS),
    ]


class TenantDetail:
    """Show a tenant's tabs; `head` is what each has above it."""

    def __init__(self, services: UiServices, pages: Pages) -> None:
        self._services = services
        self._pages = pages

    async def head(self, request: Request, tab: str) -> dict[str, Any]:
        """Return what every tab shows of its tenant. Raises: `NotFound`."""
        admin = admin_of(request)
        name = request.path_params["name"]
        tenant = await self._services.admin.tenants.get(name, within=admin.tenant_id)
        return {
            "tenant": tenant,
            "tab": tab,
            "root": PORTAL if admin.role.is_of_tenant else f"/admin/tenants/{tenant.name}",
            "standing": [] if admin.role.is_of_tenant else await self._standing(tenant),
            "may_change": admin.role in OPERATORS,
            "may_change_keys": admin.role in TENANT_OWNERS,
            "of_tenant": admin.role.is_of_tenant,
        }

    async def keys(self, request: Request) -> Response:
        context = await self.head(request, "keys")
        found = await self._services.admin.keys.page(
            page_asked(request),
            tenant=context["tenant"].name,
            within=admin_of(request).tenant_id,
        )
        return self._answer(request, context | {"listing": listed(request, found)})

    async def usage(self, request: Request) -> Response:
        context = await self.head(request, "usage")
        admin = admin_of(request)
        today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        start = today - timedelta(days=_USAGE_DAYS - 1)

        question = await self._services.usage.question(
            UsageAsked(by=(), start=start),
            organisation_id=admin.organisation_id,
            tenant_id=context["tenant"].id,
        )
        total, (days, parts) = await self._services.usage.answer_by(question, _USAGE_BY)
        context |= {
            "total": total,
            "bars": day_bars(days, start, _USAGE_DAYS),
            "parts": sorted(parts, key=lambda one: -one.totals.nano_usd)[:100],
            "num_days": _USAGE_DAYS,
        }
        return self._answer(request, context)

    async def requests(self, request: Request) -> Response:
        context = await self.head(request, "requests")
        found = await self._services.admin.request_records.page(
            RecordFilter(),
            page_asked(request),
            tenant=context["tenant"].name,
            within=admin_of(request).tenant_id,
        )
        return self._answer(request, context | {"listing": listed(request, found)})

    async def audit(self, request: Request) -> Response:
        context = await self.head(request, "audit")
        found = await self._services.admin.audit.page(
            AuditFilter(),
            page_asked(request),
            tenant=context["tenant"].name,
            within=admin_of(request).tenant_id,
        )
        listing = listed(request, found)
        context |= {"listing": listing, "entries": [audit_row(row) for row in listing.rows]}
        return self._answer(request, context)

    async def settings(self, request: Request) -> Response:
        return await self._settings(request, None, Words())

    async def change(self, request: Request) -> Response:
        form = await read_form(request)
        name = request.path_params["name"]
        try:
            changes = _changes(form)
            await self._services.admin.tenants.update(
                actor_of(request), name, changes, version=form.version()
            )
        except VersionConflict as exc:
            return await self._settings(request, form, Words(), conflict=exc.current)
        except (InvalidRequest, Conflict, NotFound) as exc:
            status = classify(exc)[0]
            return await self._settings(request, form, errors_of(exc), status=status)
        return see(f"/admin/tenants/{name}/settings", said="changed")

    async def preview(self, request: Request) -> Response:
        """Say which share a weight would give now; nothing is changed."""
        form = await read_form(request)
        try:
            weight = _changes(form)["weight"]
        except InvalidRequest as exc:
            return await self._settings(request, form, errors_of(exc), status=classify(exc)[0])
        assert isinstance(weight, float), "a tenant has a weight"
        tenant = await self._services.admin.tenants.get(request.path_params["name"])
        shares = (await self._services.live.show())["shares"]
        predicted = predicted_shares(tenant, weight, shares)
        return await self._settings(request, form, Words(), predicted=predicted)

    async def archive(self, request: Request) -> Response:
        form = await read_form(request)
        name = request.path_params["name"]
        if form.text("confirm") != name:
            errors = Words({"confirm": "Write the tenant's name to confirm."})
            return await self._settings(request, None, errors, status=400)
        await self._services.admin.tenant_archive.archive(
            actor_of(request), name, version=form.version()
        )
        return see("/admin/tenants", said="archived")

    async def _settings(
        self,
        request: Request,
        form: Form | None,
        errors: Words,
        *,
        status: int = 200,
        conflict: Any = None,  # a tenant, as it is now
        predicted: Sequence[Predicted] | None = None,
    ) -> Response:
        context = await self.head(request, "settings")
        tenant = context["tenant"]
        values = Words(_values(tenant)) if form is None else form.values()
        context |= {
            "values": values,
            "version": tenant.version,
            "errors": errors,
            "tiers": [tier.value for tier in Tier],
            "plans": [],
            "orgs": [],
            "conflict": None,
            "predicted": predicted,
        }
        if context["may_change"]:
            choices = await self._services.admin.tenants.choices()
            context |= {"plans": choices.plans, "orgs": choices.orgs}
        if conflict is not None:
            status = 409
            context["conflict"] = await self._conflict(tenant, _values(conflict), values)
        return self._pages.answer(request, "tenant_settings.html", context, status=status)

    async def _conflict(
        self, tenant: Tenant, there: Mapping[str, str], sent: Words
    ) -> dict[str, Any]:
        found = await self._services.admin.audit.page(
            AuditFilter(object_kind="tenant"), PageRequest(1), tenant=tenant.name
        )
        lines = [
            line
            for name in _CHANGES
            if there[name] != sent[name]
            for line in (
                ("-", f"{name}: {there[name] or 'not set'}"),
                ("+", f"{name}: {sent[name] or 'not set'}"),
            )
        ]
        return {"lines": lines, "by": audit_row(found.data[0]) if found.data else None}

    async def _standing(self, tenant: Tenant) -> list[Mapping[str, Any]]:
        """Return how it stands in each class, where it is among the busiest."""
        shares = (await self._services.live.show())["shares"]
        return [share for share in shares if share["tenant"] == tenant.name]

    def _answer(self, request: Request, context: Mapping[str, Any]) -> Response:
        return self._pages.answer(request, f"tenant_{context['tab']}.html", context)


def _values(tenant: Tenant) -> dict[str, str]:
    """Return what the fields of the settings hold."""

    def number(value: float | None) -> str:
        # All of its digits: they are what a form that is saved for another field sends back.
        return "" if value is None else repr(value).removesuffix(".0")

    slo = tenant.slo
    return {
        "weight": number(tenant.weight),
        "ttft_ms": number(slo.ttft_ms),
        "tpot_ms": number(slo.tpot_ms),
        "max_gap_ms": number(slo.max_gap_ms),
        "plan": tenant.plan or "",
        "org": tenant.org or "",
        "max_tier": tenant.ceilings.max_tier.value,
    }


def _changes(form: Form) -> dict[str, object]:
    """Read the settings. Raises: `InvalidRequest`."""
    weight = form.number("weight")
    if weight is None:
        raise InvalidRequest("A tenant has a weight.", param="weight")
    try:
        tier = Tier(form.text("max_tier", Tier.PRIORITY.value))
    except ValueError:
        raise InvalidRequest("There is no such class.", param="max_tier") from None
    return {
        "weight": weight,
        "ttft_ms": form.number("ttft_ms"),
        "tpot_ms": form.number("tpot_ms"),
        "max_gap_ms": form.number("max_gap_ms"),
        "plan": form.optional("plan"),
        "org": form.optional("org"),
        "max_tier": tier,
    }
