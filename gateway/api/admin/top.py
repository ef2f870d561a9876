"""`GET /admin/v1/top`: what the process does now, made at most once a second for all who ask.

See `gateway.services.admin.live_view` for what is in it.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.api.admin.routing import (
    VIEWERS,
    AuthenticatesAdmins,
    admin_answer,
    admin_route,
    query,
)
from gateway.services.admin import LiveView


def top_route(live: LiveView, auth: AuthenticatesAdmins) -> Route:
    """Declare the route; mount it in an application that handles `GatewayError`."""

    async def show(request: Request) -> Response:
        query(request)
        return admin_answer(await live.show())

    return admin_route("/top", "GET", show, auth, allows=VIEWERS)
