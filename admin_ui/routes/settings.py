"""What this process runs with: each setting and where it comes from, and how its parts are."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin_ui.pages import Pages
from admin_ui.screens import chosen, screen
from admin_ui.services import UiServices
from gateway.api.admin.routing import VIEWERS


def settings_routes(services: UiServices, pages: Pages) -> list[Route]:
    """Declare the page."""

    async def show(request: Request) -> Response:
        params = chosen(request, "q", "set")
        wanted = params["q"].lower()
        settings = [
            one
            for one in services.settings
            if (wanted in one.name or wanted in one.help.lower())
            and (params["set"] != "yes" or one.source != "default")
        ]
        context = {"params": params, "settings": settings, "parts": services.parts()}
        return pages.answer(request, "settings.html", context)

    return [screen("/admin/settings", show, allows=VIEWERS)]
