"""The tenants' portal: what a tenant may know of itself, by its users and by its keys.

Its screens are those of the admin pages, bound to the tenant of who speaks: `within` bounds every
question, and no address names a tenant. What is of the whole platform is not here: other tenants,
weights, the queue. Nothing here is counted against a limit of requests, so that who is over one can
read why; how often a tenant's people may ask is bounded as reads of the API are.
"""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from admin_ui.guards.entrance import SAFE_METHODS
from admin_ui.navigation import ADMIN, PORTAL, TENANT_OWNER, TENANTS
from admin_ui.pages import Pages
from admin_ui.refusals import refused
from admin_ui.routes.audit import AuditScreens
from admin_ui.routes.batches import BatchScreens
from admin_ui.routes.keys import KeyScreens
from admin_ui.routes.playground import PlaygroundScreens
from admin_ui.routes.requests import RequestScreens
from admin_ui.routes.tenant import TenantDetail
from admin_ui.routes.tenant_limits import TenantLimits
from admin_ui.screens import Screen, screen
from admin_ui.services import UiServices
from gateway.api.admin.routing import EVERYONE, admin_of
from gateway.domain.page import PageRequest
from gateway.domain.price import readable_price
from gateway.domain.request_record import RecordFilter
from gateway.errors import NotFound
from gateway.services.read_rate import CHANGE_READS

_REFUSED: Final = 429
# Of refused requests so many are looked at: the newest, of the day that records are kept.
_MAX_REFUSED: Final = 100
# As a look at usage costs in the API.
_USAGE_READS: Final = 10


def portal_routes(services: UiServices, pages: Pages) -> list[Route]:
    """Declare the screens."""
    portal = _Portal(services, pages)
    own = portal.own
    audit = AuditScreens(services, pages)
    detail = TenantDetail(services, pages)
    return [
        screen(PORTAL, portal.show, allows=EVERYONE),
        screen(f"{PORTAL}/meters", own(portal.limits.meters), allows=TENANTS),
        screen(f"{PORTAL}/usage", portal.own(detail.usage, reads=_USAGE_READS), allows=TENANTS),
        *RequestScreens(services, pages).routes(f"{PORTAL}/requests", reads=TENANTS, of=own),
        *BatchScreens(services, pages).routes(
            f"{PORTAL}/batches", reads=TENANTS, changes=TENANT_OWNER, downloads=TENANTS, of=own
        ),
        *KeyScreens(services, pages).routes(
            f"{PORTAL}/keys", reads=TENANTS, changes=TENANT_OWNER, of=own
        ),
        screen(f"{PORTAL}/prices", own(portal.prices), allows=TENANTS),
        *PlaygroundScreens(services, pages).routes(
            f"{PORTAL}/playground", allows=TENANT_OWNER, of=own
        ),
        screen(f"{PORTAL}/audit", own(audit.page), allows=TENANTS),
    ]


class _Portal:
    def __init__(self, services: UiServices, pages: Pages) -> None:
        self._services = services
        self._pages = pages
        self.limits = TenantLimits(services, pages)

    def own(self, endpoint: Screen, *, reads: int = 1) -> Screen:
        """Have a screen show the tenant of who speaks, as if its address named it.

        It raises `TenantLimited` where the tenant's people ask too often; `reads`: what it counts,
        for a change `CHANGE_READS` at least.
        """

        async def of_own(request: Request) -> Response:
            tenant_id = admin_of(request).tenant_id
            assert tenant_id is not None, "only who is bound to a tenant opens it"
            is_change = request.method not in SAFE_METHODS
            counted = max(reads, CHANGE_READS) if is_change else reads
            await self._services.portal_reads.admit(tenant_id, counted)
            found = await self._services.admin.tenants.named({tenant_id})
            if tenant_id not in found:
                raise NotFound("Your tenant is not there any more.")
            request.path_params["name"] = found[tenant_id].name
            return await endpoint(request)

        return of_own

    async def show(self, request: Request) -> Response:
        if admin_of(request).tenant_id is None:
            return RedirectResponse(ADMIN, 303)
        return await self.own(self._show)(request)

    async def _show(self, request: Request) -> Response:
        context = await self.limits.context(request)
        tenant = context["tenant"]
        records = await self._services.admin.request_records.page(
            RecordFilter(status=_REFUSED),
            PageRequest(_MAX_REFUSED),
            within=tenant.id,
        )
        context |= {
            "minute": self._services.live.of_tenant(tenant.id),
            "refused": refused(records.data),
            "is_more": records.next is not None,
            "full": [line for line in context["lines"] if _is_full(line)],
        }
        return self._pages.answer(request, "portal/limits.html", context)

    async def prices(self, request: Request) -> Response:
        found = await self._services.admin.prices.page(PageRequest(100))
        prices: list[tuple[Any, Any]] = [(one, readable_price(one)) for one in found.data]
        return self._pages.answer(request, "portal/prices.html", {"prices": prices})


def _is_full(line: Any) -> bool:  # a limit, as screens show it
    return line.use is not None and line.use.used + line.use.held >= (line.holds or 0)
