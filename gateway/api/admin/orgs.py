"""The admin API of orgs: `/admin/v1/orgs`. An org owns tenants, which share its share."""

from __future__ import annotations

from datetime import datetime

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.api.admin.routing import (
    OPERATORS,
    VIEWERS,
    AuthenticatesAdmins,
    actor_of,
    admin_answer,
    admin_body,
    admin_route,
    conflicts_shown,
    page_answer,
    page_query,
    wanted_version,
)
from gateway.api.body import JsonBody
from gateway.domain import Org
from gateway.services.admin import OrgService


class NewOrg(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    weight: float = 1.0


class OrgChanges(msgspec.Struct, forbid_unknown_fields=True):
    """Hold what is to change; a weight that is absent stays."""

    weight: float | None = None
    version: int | None = None


class OrgView(msgspec.Struct):
    id: str
    name: str
    weight: float
    version: int
    created_at: datetime


def org_routes(orgs: OrgService, auth: AuthenticatesAdmins) -> list[Route]:
    """Declare the routes; mount them in an application that handles `GatewayError`."""
    new_org, org_changes = JsonBody(NewOrg), JsonBody(OrgChanges)

    async def page(request: Request) -> Response:
        asked, _ = page_query(request)
        return page_answer(await orgs.page(asked), _org_view)

    async def create(request: Request) -> Response:
        body = new_org.decode(await admin_body(request))
        org = await orgs.create(actor_of(request), body.name, weight=body.weight)
        return admin_answer(_org_view(org), 201)

    async def show(request: Request) -> Response:
        return admin_answer(_org_view(await orgs.get(request.path_params["name"])))

    async def update(request: Request) -> Response:
        raw = await admin_body(request)
        body = org_changes.decode(raw)
        with conflicts_shown(_org_view, raw):
            org = await orgs.update(
                actor_of(request),
                request.path_params["name"],
                body.weight,
                version=wanted_version(request, body.version),
            )
        return admin_answer(_org_view(org))

    async def remove(request: Request) -> Response:
        with conflicts_shown(_org_view):
            org = await orgs.remove(
                actor_of(request), request.path_params["name"], version=wanted_version(request)
            )
        return admin_answer(_org_view(org))

    return [
        admin_route("/orgs", "GET", page, auth, allows=VIEWERS),
        admin_route("/orgs", "POST", create, auth, allows=OPERATORS),
        admin_route("/orgs/{name}", "GET", show, auth, allows=VIEWERS),
        admin_route("/orgs/{name}", "PATCH", update, auth, allows=OPERATORS),
        admin_route("/orgs/{name}", "DELETE", remove, auth, allows=OPERATORS),
    ]


def _org_view(org: Org) -> OrgView:
    return OrgView(
        id=str(org.id),
        name=org.name,
        weight=org.weight,
        version=org.version,
        created_at=org.created_at,
    )
