"""What the shell does by forms: the theme, the height of rows, and finding things."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin_ui.navigation import PORTAL, TENANTS
from admin_ui.pages import ROWS_COOKIE, THEME_COOKIE, THEMES
from admin_ui.screens import base_of, read_form, screen, see
from gateway.api.admin.routing import EVERYONE, VIEWERS
from gateway.credentials import is_kid

_YEAR_S: Final = 31_536_000
_REQUEST_ID: Final = re.compile(r"(?:[a-z]{1,16}[_-])?[0-9a-f]{32}", re.ASCII)


def shell_routes() -> list[Route]:
    """Declare the routes."""
    return [
        screen("/admin/theme", set_theme, method="POST", allows=EVERYONE),
        screen("/admin/rows", set_rows, method="POST", allows=EVERYONE),
        screen("/admin/search", search, allows=VIEWERS),
        screen("/portal/search", search, allows=TENANTS),
    ]


async def set_theme(request: Request) -> Response:
    form = await read_form(request)
    theme = form.text("theme")
    return _keep(see(form.text("back")), THEME_COOKIE, theme if theme in THEMES else "system")


async def set_rows(request: Request) -> Response:
    form = await read_form(request)
    rows = "compact" if form.text("rows") == "compact" else "comfortable"
    return _keep(see(form.text("back")), ROWS_COOKIE, rows)


async def search(request: Request) -> Response:
    """Send on to the request, the key, or the tenants that a text looks like."""
    base = base_of(request)
    text = request.query_params.get("q", "").strip()[:200]
    if _REQUEST_ID.fullmatch(text):
        return see(f"{base}/requests/{text}")
    if is_kid(text):
        return see(f"{base}/keys/{text}")
    if base == PORTAL:
        return see(base)
    return see(f"/admin/tenants?{urlencode({'q': text})}") if text else see("/admin/tenants")


def _keep(response: Response, name: str, value: str) -> Response:
    # Scripts may set it too: it says how pages look, and opens nothing.
    response.set_cookie(name, value, max_age=_YEAR_S, path="/", samesite="lax")
    return response
