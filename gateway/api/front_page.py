"""`/` and `/version`: what this is, for somebody who has come upon it.

Both are the same for everybody and made once; nothing of a request goes into them. The models are
named, as the address of a server that serves one model says as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.api.access import public

_PAGE: Final = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Sluice</title>
<h1>Sluice {version}</h1>
<p>An LLM gateway that speaks OpenAI's API. The base URL is this address and <code>/v1</code>.</p>
<p>Served here: {models}</p>
<p>A key is made by whoever runs this server: <code>sluice keys create TENANT</code>. Send it as
<code>Authorization: Bearer KEY</code>.</p>
<p><a href="/docs">The API</a> · <a href="/health">Health</a> ·
<a href="/version">Version</a></p>
</html>
"""
_HEADERS: Final = {
    "vary": "accept",
    "content-security-policy": "default-src 'none'",
    "x-content-type-options": "nosniff",
}


class FrontPage:
    """Answer a browser with a page and a program with JSON."""

    def __init__(self, models: Sequence[str], version: str) -> None:
        names = ", ".join(f"<code>{escape(name)}</code>" for name in models)
        self._page = _PAGE.format(version=escape(version), models=names).encode()
        self._version = msgspec.json.encode({"version": version})
        links = {"base_url": "/v1", "openapi": "/openapi.json", "health": "/health"}
        about = {"name": "Sluice", "version": version, "models": list(models)}
        self._document = msgspec.json.encode(about | links)

    def routes(self) -> list[Route]:
        """Declare the routes, open to anybody."""
        return [public("/", self.show), public("/version", self.version)]

    async def show(self, request: Request) -> Response:
        if "text/html" in request.headers.get("accept", ""):
            return Response(self._page, headers=_HEADERS, media_type="text/html")
        return Response(self._document, headers=_HEADERS, media_type="application/json")

    async def version(self, request: Request) -> Response:
        return Response(self._version, media_type="application/json")
