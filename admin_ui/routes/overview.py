"""The overview: how it goes now, in figures, lines and shares; and the stream that follows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin_ui.overview_figures import columns_of, figures_of
from admin_ui.pages import Pages
from admin_ui.screens import screen
from admin_ui.services import UiServices
from gateway.api.admin.routing import VIEWERS, admin_of

_MAX_SHARES: Final = 10


def overview_routes(services: UiServices, pages: Pages) -> list[Route]:
    """Declare the page, its table of shares, and the live stream of all pages."""
    overview = _Overview(services, pages)
    return [
        screen("/admin", overview.show, allows=VIEWERS),
        screen("/admin/overview/shares", overview.shares, allows=VIEWERS),
        screen("/admin/live", overview.live, allows=VIEWERS),
    ]


class _Overview:
    def __init__(self, services: UiServices, pages: Pages) -> None:
        self._services = services
        self._pages = pages

    async def show(self, request: Request) -> Response:
        view, samples = await self._services.live.show(), self._services.history.samples()
        context = self._shown(view) | {
            "models": view["models"],
            "figures": figures_of(view),
            "queue": columns_of(samples, "queue"),
            "ttft": columns_of(samples, "ttft"),
            "ills": [part for part in self._services.parts() if not part.ok],
            "api": self._services.api,
        }
        return self._pages.answer(request, "overview.html", context)

    async def shares(self, request: Request) -> Response:
        view = await self._services.live.show()
        return self._pages.answer(request, "overview_shares.html", self._shown(view))

    async def live(self, request: Request) -> Response:
        return self._services.hub.stream(admin_of(request).name)

    def _shown(self, view: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "shares": [one for one in view["shares"] if _has_work(one)][:_MAX_SHARES],
            "slowest": view["slowest"],
            "window_s": view["window_s"],
        }


def _has_work(share: Mapping[str, Any]) -> bool:
    """Tell whether a tenant had something to do: the scheduler knows others for a while."""
    return bool(share["queued"] or share["running"] or share["received"])
