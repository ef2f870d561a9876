"""The admin API of the overload ladder: `GET /admin/v1/overload`.

Answers `{"level": 0 to 4, "name", "cause", "signals": {...}}`: how hard the server is pressed, by
what, and what was measured last, each as a share of its bound but for `lag_s`. See
`gateway.services.health.overload` for the levels.
"""

from __future__ import annotations

from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.api.admin.routing import VIEWERS, AuthenticatesAdmins, admin_answer, admin_route
from gateway.services.health import OverloadWatch


def overload_route(overload: OverloadWatch, admin_auth: AuthenticatesAdmins) -> Route:
    """Declare the route; mount it in an application that handles `GatewayError`."""

    async def show(request: Request) -> Response:
        level = overload.level
        return admin_answer(
            {
                "level": int(level),
                "name": level.name.lower(),
                "cause": overload.cause,
                "signals": asdict(overload.signals),
            }
        )

    return admin_route("/overload", "GET", show, admin_auth, allows=VIEWERS)
