"""`/admin/_components`: every component in its states, for who builds screens of them."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin_ui.pages import Pages
from admin_ui.screens import screen
from gateway.api.admin.routing import VIEWERS

_COUNT = 120


def component_routes(pages: Pages) -> list[Route]:
    """Declare the page."""

    async def show(request: Request) -> Response:
        now = datetime.now(UTC).replace(microsecond=0)
        begun_s = now.timestamp() - 5 * _COUNT
        times = [begun_s + 5 * place for place in range(_COUNT)]
        waves: list[list[float | None]] = [
            [round(8 + 6 * math.sin(place / 9 + shift), 1) for place in range(_COUNT)]
            for shift in (0.0, 1.5)
        ]
        waves[1][40:56] = [None] * 16
        context = {
            "columns": [times, *waves],
            "now": now,
            "earlier": now - timedelta(hours=5),
        }
        return pages.answer(request, "components.html", context)

    return [screen("/admin/_components", show, allows=VIEWERS)]
