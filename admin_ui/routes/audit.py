"""The audit log: who changed what, and whether its chain holds."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin_ui.audit_rows import audit_row
from admin_ui.pages import Pages
from admin_ui.screens import chosen, listed, page_asked, screen
from admin_ui.services import UiServices
from gateway.api.admin.routing import VIEWERS, admin_of
from gateway.domain.admin import AuditFilter
from gateway.errors import NotFound

_KINDS = ("tenant", "key", "quota", "plan", "price", "org", "token", "user", "batch", "scheduler")
_OWN_KINDS = ("key", "quota", "batch")


def audit_routes(services: UiServices, pages: Pages) -> list[Route]:
    """Declare the list, and the walk along the chain."""
    audit = AuditScreens(services, pages)
    return [
        screen("/admin/audit", audit.page, allows=VIEWERS),
        screen("/admin/audit/chain", audit.chain, allows=VIEWERS),
    ]


class AuditScreens:
    """Show the records that who speaks may see: all, or of keys, limits and batches its own."""

    def __init__(self, services: UiServices, pages: Pages) -> None:
        self._services = services
        self._pages = pages

    async def page(self, request: Request) -> Response:
        params = chosen(request, "tenant", "actor", "kind", "from", "to")
        admin = admin_of(request)
        of_tenant = admin.tenant_id is not None
        kinds: tuple[str, ...] = _KINDS
        if of_tenant:
            # What operators change of a tenant besides, as its weight, is not in the portal.
            kinds = _OWN_KINDS
        kind = params["kind"] if params["kind"] in kinds else ("" if not of_tenant else kinds[0])
        wanted = AuditFilter(
            actor=params.get("actor"),
            object_kind=kind or None,
            since=_day(params["from"]),
            until=_day(params["to"]),
        )
        context: dict[str, Any] = {
            "params": params,
            "kinds": kinds,
            "kind": kind,
            "listing": None,
            "entries": [],
            "of_tenant": of_tenant,
        }
        try:
            found = await self._services.admin.audit.page(
                wanted, page_asked(request), tenant=params.get("tenant"), within=admin.tenant_id
            )
            context["listing"] = listing = listed(request, found)
            rows = [audit_row(row) for row in listing.rows]
            context["entries"] = [replace(row, ip=None) for row in rows] if of_tenant else rows
        except NotFound:
            pass  # there is no tenant of that name: the page says so
        return self._pages.answer(request, "audit.html", context)

    async def chain(self, request: Request) -> Response:
        verdict = await self._services.admin.audit.verify()
        return self._pages.answer(request, "audit_chain.html", {"verdict": verdict})


def _day(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC) if text else None
    except ValueError:
        return None
