"""Tenants: the list, by filters that stand in its address, and the form that makes one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin_ui.pages import Pages
from admin_ui.screens import (
    Form,
    Words,
    chosen,
    errors_of,
    listed,
    page_asked,
    read_form,
    screen,
    see,
)
from admin_ui.services import UiServices
from gateway.api.admin.routing import OPERATORS, VIEWERS, actor_of, admin_of
from gateway.api.errors import classify
from gateway.domain import Tenant, TenantFilter, TenantSlo, Tier
from gateway.errors import Conflict, InvalidRequest, NotFound
from gateway.services.admin import MAX_SHARES


def tenant_routes(services: UiServices, pages: Pages) -> list[Route]:
    """Declare the list and the form."""
    tenants = _Tenants(services, pages)
    return [
        screen("/admin/tenants", tenants.page, allows=VIEWERS),
        screen("/admin/tenants/new", tenants.new, allows=OPERATORS),
        screen("/admin/tenants/new", tenants.create, method="POST", allows=OPERATORS),
    ]


class _Tenants:
    def __init__(self, services: UiServices, pages: Pages) -> None:
        self._services = services
        self._pages = pages

    async def page(self, request: Request) -> Response:
        params = chosen(request, "q", "plan", "org", "promise")
        wanted = TenantFilter(
            text=params.get("q"),
            plan=_none_is_empty(params.get("plan")),
            org=_none_is_empty(params.get("org")),
            is_promised={"yes": True, "no": False}.get(params.get("promise", "")),
        )
        admin = admin_of(request)
        found = await self._services.admin.tenants.page(
            page_asked(request), chosen=wanted, within=admin.tenant_id
        )
        of_tenant = admin.tenant_id is not None
        context = {
            "listing": listed(request, found),
            "params": params,
            "now": None if of_tenant else await self._now(found.data),
            "may_create": admin.role in OPERATORS,
        } | (_NO_CHOICES if of_tenant else await self._choices())
        is_part = request.headers.get("hx-request") == "true"
        template = "tenants_table.html" if is_part else "tenants.html"
        return self._pages.answer(request, template, context)

    async def new(self, request: Request) -> Response:
        return await self._form(request, Form([]), Words())

    async def create(self, request: Request) -> Response:
        form = await read_form(request)
        try:
            tenant = await self._create(request, form)
        except (InvalidRequest, Conflict, NotFound) as exc:
            return await self._form(request, form, errors_of(exc), status=classify(exc)[0])
        return see(f"/admin/tenants/{tenant.name}", said="created")

    async def _create(self, request: Request, form: Form) -> Tenant:
        slo = TenantSlo(form.number("ttft_ms"), form.number("tpot_ms"), form.number("max_gap_ms"))
        weight = form.number("weight")
        return await self._services.admin.tenants.create(
            actor_of(request),
            form.text("name"),
            weight=1.0 if weight is None else weight,
            slo=slo,
            plan=form.optional("plan"),
            ceilings={"max_tier": _tier(form.text("max_tier"))},
            org=form.optional("org"),
        )

    async def _form(
        self, request: Request, form: Form, errors: Words, *, status: int = 200
    ) -> Response:
        context = {
            "values": form.values(),
            "errors": errors,
            "tiers": [tier.value for tier in Tier],
        } | await self._choices()
        return self._pages.answer(request, "tenant_new.html", context, status=status)

    async def _now(self, tenants: Sequence[Tenant]) -> dict[str, tuple[int, int] | None]:
        """Return how many requests of each run and wait now; None: it is not among the busiest."""
        shares = (await self._services.live.show())["shares"]
        absent = (0, 0) if len(shares) < MAX_SHARES else None
        now: dict[str, tuple[int, int] | None] = {one.name: absent for one in tenants}
        for share in shares:
            running, queued = now.get(share["tenant"]) or (0, 0)
            now[share["tenant"]] = running + share["running"], queued + share["queued"]
        return now

    async def _choices(self) -> dict[str, Any]:
        choices = await self._services.admin.tenants.choices()
        return {"plans": choices.plans, "orgs": choices.orgs}


_NO_CHOICES: Final[dict[str, Any]] = {"plans": [], "orgs": []}


def _none_is_empty(text: str | None) -> str | None:
    """Read a filter whose "none" chooses those without."""
    return "" if text == "-" else text


def _tier(text: str) -> Tier:
    try:
        return Tier(text or Tier.PRIORITY.value)
    except ValueError:
        raise InvalidRequest("There is no such class.", param="max_tier") from None
