"""`/` and `/version`: what this is, for somebody who has come upon it.

Both are made once; nothing of a request goes into them. The models are named, as the address of a
server that serves one model says as much. Where the web pages are is told where operators have
named it, and otherwise to who is on this machine: nobody else reaches them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.api.access import public
from gateway.domain.address import is_loopback

_PAGE: Final = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Sluice</title>
<h1>Sluice {version}</h1>
<p>An LLM gateway that speaks OpenAI's API. The base URL is this address and <code>/v1</code>.</p>
<p>Served here: {models}</p>
<p>A key is made by whoever runs this server: <code>sluice keys create TENANT</code>. Send it as
<code>Authorization: Bearer KEY</code>.</p>
<p><a href="/docs">The API</a> · {ui}<a href="/health">Health</a> ·
<a href="/version">Version</a></p>
</html>
"""
_HEADERS: Final = {
    "vary": "accept",
    "content-security-policy": "default-src 'none'",
    "x-content-type-options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class UiAddress:
    """Say where the web pages are: as browsers elsewhere reach them, and as this machine does."""

    public_url: str | None = None
    local_url: str | None = None

    def seen_by(self, address: str | None) -> str | None:
        """Return where a client at that address finds them, None where it does not."""
        if self.public_url is not None:
            return self.public_url
        return self.local_url if is_loopback(address or "") else None


class FrontPage:
    """Answer a browser with a page and a program with JSON; `ui` is where the web pages are."""

    def __init__(self, models: Sequence[str], version: str, ui: UiAddress | None = None) -> None:
        self._ui = ui or UiAddress()
        self._version = msgspec.json.encode({"version": version})
        urls = {None, self._ui.public_url, self._ui.local_url}
        self._made = {url: _made(models, version, url) for url in urls}

    def routes(self) -> list[Route]:
        """Declare the routes, open to anybody."""
        return [public("/", self.show), public("/version", self.version)]

    async def show(self, request: Request) -> Response:
        client = request.scope.get("client")
        page, document = self._made[self._ui.seen_by(client[0] if client else None)]
        if "text/html" in request.headers.get("accept", ""):
            return Response(page, headers=_HEADERS, media_type="text/html")
        return Response(document, headers=_HEADERS, media_type="application/json")

    async def version(self, request: Request) -> Response:
        return Response(self._version, media_type="application/json")


def _made(models: Sequence[str], version: str, ui: str | None) -> tuple[bytes, bytes]:
    """Make the page and the document."""
    names = ", ".join(f"<code>{escape(name)}</code>" for name in models)
    link = "" if ui is None else f'<a href="{escape(ui)}/admin">The web pages</a> · '
    page = _PAGE.format(version=escape(version), models=names, ui=link)
    about: dict[str, object] = {"name": "Sluice", "version": version, "models": list(models)}
    about |= {"base_url": "/v1", "openapi": "/openapi.json", "health": "/health"}
    if ui is not None:
        about["admin_ui"] = f"{ui}/admin"
    return page.encode(), msgspec.json.encode(about)
