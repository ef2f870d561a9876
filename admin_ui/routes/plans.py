"""Plans and prices: limits by name that tenants inherit, and what a million tokens cost."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin_ui.limits import LABELS, WINDOWS, differences, metrics_of, read_limits, written
from admin_ui.pages import Pages
from admin_ui.screens import Form, Words, errors_of, listed, page_asked, read_form, screen, see
from admin_ui.services import UiServices
from gateway.api.admin.routing import OPERATORS, VIEWERS, actor_of, admin_of
from gateway.api.errors import classify
from gateway.domain.page import PageRequest
from gateway.domain.plan import Plan
from gateway.domain.price import readable_price
from gateway.domain.quota import Quota, ScopeKind
from gateway.errors import Conflict, InvalidRequest, VersionConflict

_KIND = ScopeKind.PLAN
_PARTS = ("input_usd_per_mtok", "cached_usd_per_mtok", "output_usd_per_mtok")


def plan_routes(services: UiServices, pages: Pages) -> list[Route]:
    """Declare the page, a plan's own, and the forms."""
    plans = _Plans(services, pages)
    return [
        screen("/admin/plans", plans.page, allows=VIEWERS),
        screen("/admin/plans/new", plans.new, allows=OPERATORS),
        screen("/admin/plans/new", plans.create, method="POST", allows=OPERATORS),
        screen("/admin/plans/{name}", plans.show, allows=VIEWERS),
        screen("/admin/plans/{name}", plans.change, method="POST", allows=OPERATORS),
        screen("/admin/plans/{name}/remove", plans.remove, method="POST", allows=OPERATORS),
        screen("/admin/prices", plans.add_price, method="POST", allows=OPERATORS),
    ]


class _Plans:
    def __init__(self, services: UiServices, pages: Pages) -> None:
        self._services = services
        self._plans = services.admin.plans
        self._pages = pages

    async def page(self, request: Request) -> Response:
        return await self._page(request, Words(), Words())

    async def new(self, request: Request) -> Response:
        return self._form(request, None, Words(), Words())

    async def create(self, request: Request) -> Response:
        form = await read_form(request)
        try:
            limits = _given(read_limits(form, _KIND))
            plan = await self._plans.create(actor_of(request), form.text("name"), limits)
        except (InvalidRequest, Conflict) as exc:
            status = classify(exc)[0]
            return self._form(request, None, form.values(), errors_of(exc), status=status)
        return see(f"/admin/plans/{plan.name}", said="created")

    async def show(self, request: Request) -> Response:
        plan = await self._plans.get(request.path_params["name"])
        return self._form(request, plan, _values(plan), Words())

    async def change(self, request: Request) -> Response:
        form = await read_form(request)
        name = request.path_params["name"]
        try:
            limits = read_limits(form, _KIND)
            await self._plans.update(actor_of(request), name, limits, version=form.version())
        except VersionConflict as exc:
            return self._stale(request, exc.current, form)
        except (InvalidRequest, Conflict) as exc:
            plan = await self._plans.get(name)
            status = classify(exc)[0]
            return self._form(request, plan, form.values(), errors_of(exc), status=status)
        return see(f"/admin/plans/{name}", said="changed")

    async def remove(self, request: Request) -> Response:
        form = await read_form(request)
        name = request.path_params["name"]
        try:
            await self._plans.remove(actor_of(request), name, version=form.version())
        except Conflict as exc:
            plan = await self._plans.get(name)
            errors = Words({"": exc.message})
            return self._form(request, plan, _values(plan), errors, status=409)
        return see("/admin/plans", said="removed")

    async def add_price(self, request: Request) -> Response:
        form = await read_form(request)
        try:
            await self._services.admin.prices.create(
                actor_of(request),
                form.text("model"),
                input_usd=_decimal(form, "input_usd_per_mtok"),
                cached_usd=(
                    _decimal(form, "cached_usd_per_mtok")
                    if form.optional("cached_usd_per_mtok")
                    else None
                ),
                output_usd=_decimal(form, "output_usd_per_mtok"),
                multipliers={
                    tier: _decimal(form, f"{tier}_multiplier")
                    for tier in ("priority", "default", "flex", "batch")
                    if form.optional(f"{tier}_multiplier")
                },
            )
        except InvalidRequest as exc:
            status = classify(exc)[0]
            return await self._page(request, form.values(), errors_of(exc), status=status)
        return see("/admin/plans", said="added")

    async def _page(
        self, request: Request, values: Words, errors: Words, *, status: int = 200
    ) -> Response:
        found = await self._plans.page(page_asked(request))
        prices = await self._services.admin.prices.page(PageRequest(100))
        context = {
            "listing": listed(request, found),
            "plans": [(plan, _limits(plan.quota)) for plan in found.data],
            "prices": [(price, readable_price(price)) for price in prices.data],
            "values": values,
            "errors": errors,
            "may_change": admin_of(request).role in OPERATORS,
        }
        return self._pages.answer(request, "plans.html", context, status=status)

    def _stale(self, request: Request, there: object, form: Form) -> Response:
        assert isinstance(there, Plan), "a plan's change conflicts with a plan"
        sent = {
            name: value
            for name, value in read_limits(form, _KIND).items()
            if not name.startswith("budget_w") and name != "budget_hard"
        }
        lines = differences(there.quota, Quota(**sent))  # type: ignore[arg-type]  # as it was read
        conflict = {"lines": lines, "by": None}
        return self._form(request, there, form.values(), Words(), status=409, conflict=conflict)

    def _form(
        self,
        request: Request,
        plan: Plan | None,
        values: Words,
        errors: Words,
        *,
        status: int = 200,
        conflict: dict[str, Any] | None = None,
    ) -> Response:
        context = {
            "plan": plan,
            "fields": [(metric.value, LABELS[metric]) for metric in metrics_of(_KIND)],
            "values": values,
            "errors": errors,
            "windows": WINDOWS,
            "conflict": conflict,
            "may_change": admin_of(request).role in OPERATORS,
        }
        return self._pages.answer(request, "plan.html", context, status=status)


def _values(plan: Plan) -> Words:
    values = {metric.value: written(metric, plan.quota.limit(metric)) for metric in LABELS}
    if plan.quota.budget_window is not None:
        values["budget_window"] = plan.quota.budget_window.text
    values["budget_hard"] = "no" if plan.quota.budget_hard is False else "yes"
    return Words(values)


def _limits(quota: Quota) -> list[str]:
    return [
        f"{LABELS[metric]}: {written(metric, amount)}"
        for metric in LABELS
        if (amount := quota.limit(metric)) is not None
    ]


def _given(limits: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in limits.items() if value is not None}


def _decimal(form: Form, name: str) -> Decimal:
    try:
        return Decimal(form.text(name).lstrip("$") or "x")
    except InvalidOperation:
        raise InvalidRequest("A number is wanted here, as 0.15.", param=name) from None
