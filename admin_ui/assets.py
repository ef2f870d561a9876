"""The files that pages load: styles, scripts, the icon. Read once, served from memory.

A file's address has its hash, so that browsers keep it for ever and never mix versions. Styles are
one file, in the order of their cascade layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

STATIC: Final = Path(__file__).parent / "static"
# `layers` says the order of the others.
STYLES: Final = ("layers", "tokens", "reset", "layout", "components", "charts")
_SCRIPTS: Final = ("app.js", "charts.js", "playground.js", "upload.js")
_VENDORED: Final = ("htmx.min.js", "uPlot.iife.min.js", "uPlot.min.css")
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_FOR_EVER: Final = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class Asset:
    """Hold a file as it is served."""

    name: str
    body: bytes

    @property
    def url(self) -> str:
        return f"/admin/static/{sha256(self.body).hexdigest()[:16]}/{self.name}"


class Assets:
    """Know every asset by its name, and answer for its address."""

    def __init__(self) -> None:
        css = STATIC / "css"
        bodies = {"app.css": b"\n".join((css / f"{name}.css").read_bytes() for name in STYLES)}
        bodies |= {name: (STATIC / "js" / name).read_bytes() for name in _SCRIPTS}
        bodies |= {name: (STATIC / "vendor" / name).read_bytes() for name in _VENDORED}
        bodies["icon.svg"] = (STATIC / "icon.svg").read_bytes()
        self._assets = {name: Asset(name, body) for name, body in bodies.items()}
        self._by_url = {asset.url: asset for asset in self._assets.values()}

    def url(self, name: str) -> str:
        """Return an asset's address."""
        return self._assets[name].url

    def routes(self) -> list[Route]:
        """Declare the route, open to anybody: a login page has a style too."""
        return [Route("/admin/static/{hash}/{name}", self.show, methods=["GET"])]

    async def show(self, request: Request) -> Response:
        asset = self._by_url.get(request.url.path)
        if asset is None:
            raise HTTPException(404)
        headers = {"cache-control": _FOR_EVER, "x-content-type-options": "nosniff"}
        kind = _TYPES[Path(asset.name).suffix]
        return Response(asset.body, headers=headers, media_type=kind)
