"""The admin API of plans: `/admin/v1/plans`. A plan is limits by name; tenants inherit them."""

from __future__ import annotations

from datetime import datetime

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.api.admin.quotas import Limits
from gateway.api.admin.routing import (
    OPERATORS,
    VIEWERS,
    AuthenticatesAdmins,
    actor_of,
    admin_answer,
    admin_body,
    admin_route,
    conflicts_shown,
    named_fields,
    page_answer,
    page_query,
    wanted_version,
)
from gateway.api.body import JsonBody
from gateway.domain.plan import Plan
from gateway.domain.quota_settings import plain_quota
from gateway.services.admin import PlanService


class NewPlan(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    quota: Limits = msgspec.field(default_factory=Limits)


class PlanChanges(msgspec.Struct, forbid_unknown_fields=True):
    """Hold what is to change; a limit that is absent stays, null takes it back."""

    quota: Limits = msgspec.field(default_factory=Limits)
    version: int | None = None


class PlanView(msgspec.Struct):
    id: str
    name: str
    version: int
    quota: dict[str, object]
    created_at: datetime


def plan_routes(plans: PlanService, auth: AuthenticatesAdmins) -> list[Route]:
    """Declare the routes; mount them in an application that handles `GatewayError`."""
    new_plan, plan_changes = JsonBody(NewPlan), JsonBody(PlanChanges)

    async def page(request: Request) -> Response:
        asked, _ = page_query(request)
        return page_answer(await plans.page(asked), _plan_view)

    async def create(request: Request) -> Response:
        body = new_plan.decode(await admin_body(request))
        plan = await plans.create(actor_of(request), body.name, named_fields(body.quota))
        return admin_answer(_plan_view(plan), 201)

    async def show(request: Request) -> Response:
        return admin_answer(_plan_view(await plans.get(request.path_params["name"])))

    async def update(request: Request) -> Response:
        raw = await admin_body(request)
        body = plan_changes.decode(raw)
        with conflicts_shown(_plan_view, raw):
            plan = await plans.update(
                actor_of(request),
                request.path_params["name"],
                named_fields(body.quota),
                version=wanted_version(request, body.version),
            )
        return admin_answer(_plan_view(plan))

    async def remove(request: Request) -> Response:
        with conflicts_shown(_plan_view):
            plan = await plans.remove(
                actor_of(request), request.path_params["name"], version=wanted_version(request)
            )
        return admin_answer(_plan_view(plan))

    return [
        admin_route("/plans", "GET", page, auth, allows=VIEWERS),
        admin_route("/plans", "POST", create, auth, allows=OPERATORS),
        admin_route("/plans/{name}", "GET", show, auth, allows=VIEWERS),
        admin_route("/plans/{name}", "PATCH", update, auth, allows=OPERATORS),
        admin_route("/plans/{name}", "DELETE", remove, auth, allows=OPERATORS),
    ]


def _plan_view(plan: Plan) -> PlanView:
    return PlanView(
        id=str(plan.id),
        name=plan.name,
        version=plan.version,
        quota=plain_quota(plan.quota),
        created_at=plan.created_at,
    )
