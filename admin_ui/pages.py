"""Rendering: the templates' environment, and what every page is told.

What a guard put into `scope["state"]`, `admin` and `form_token`, and the cookies that say how a
page is to look, are all that a page has of its request; the rest a screen hands over.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse

from admin_ui import formats
from admin_ui.assets import Assets
from admin_ui.navigation import ADMIN, root_of, sections_for
from gateway.domain.admin import Admin

TEMPLATES: Final = Path(__file__).parent / "templates"
THEME_COOKIE, ROWS_COOKIE, KEYS_COOKIE = "sluice_theme", "sluice_rows", "sluice_keys"
# A start has better to do, and nobody has signed in yet.
_AFTER_S: Final = 2.0
THEMES: Final = ("system", "light", "dark")


@dataclass(frozen=True, slots=True)
class About:
    """Say what a page's shell tells of the server; `environment` is the badge, "" shows none."""

    version: str
    environment: str = ""


class Pages:
    """Render templates. `live` says that the shell may follow `/admin/live`."""

    def __init__(self, about: About, assets: Assets) -> None:
        self._about = about
        self._environment = Environment(
            loader=FileSystemLoader(TEMPLATES),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.globals |= {"asset": assets.url, "about": about}
        self._environment.filters |= formats.FILTERS

    def compile(self) -> None:
        """Compile every template that is not compiled yet: half a second, on any thread."""
        for name in self._environment.list_templates():
            self._environment.get_template(name)

    @asynccontextmanager
    async def compiling(self) -> AsyncIterator[None]:
        """Compile beside the event loop, which whoever opens a page first held for 100 ms."""

        async def compiled() -> None:
            await asyncio.sleep(_AFTER_S)
            await asyncio.to_thread(self.compile)

        compiling = asyncio.ensure_future(compiled())
        try:
            yield
        finally:
            compiling.cancel()

    def answer(
        self,
        request: Request,
        template: str,
        context: Mapping[str, Any] | None = None,
        *,
        status: int = 200,
    ) -> HTMLResponse:
        """Answer with a page, which no cache keeps: it is one person's."""
        text = self.text(request, template, context)
        return HTMLResponse(text, status, {"cache-control": "no-store"})

    def text(
        self, request: Request, template: str, context: Mapping[str, Any] | None = None
    ) -> str:
        """Render a page, or a part of one."""
        return self._environment.get_template(template).render(
            {**_of_request(request), **(context or {})}
        )


def _of_request(request: Request) -> dict[str, Any]:
    """Return what a page is told of its request."""
    state = request.scope.get("state", {})
    admin: Admin | None = state.get("admin")
    cookies = request.cookies
    theme = cookies.get(THEME_COOKIE, "system")
    return {
        "admin": admin,
        "base": ADMIN if admin is None else root_of(admin.role),
        "form_token": state.get("form_token", ""),
        "request_id": state.get("request_id", ""),
        "theme": theme if theme in THEMES else "system",
        "rows": "compact" if cookies.get(ROWS_COOKIE) == "compact" else "comfortable",
        "keys": "off" if cookies.get(KEYS_COOKIE) == "off" else "on",
        "path": request.url.path,
        "said": request.query_params.get("said", ""),
        "sections": () if admin is None else sections_for(admin.role),
    }
