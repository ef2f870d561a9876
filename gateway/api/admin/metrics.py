"""`GET /admin/v1/metrics`: what the process counts about itself, for Prometheus."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.api.admin.routing import VIEWERS, AuthenticatesAdmins, admin_route
from gateway.telemetry.metrics import CONTENT_TYPE, Metrics


def metrics_route(metrics: Metrics, auth: AuthenticatesAdmins) -> Route:
    """Declare the route; mount it in an application that handles `GatewayError`."""

    async def show(request: Request) -> Response:
        return Response(metrics.render(), headers={"content-type": CONTENT_TYPE})

    return admin_route("/metrics", "GET", show, auth, allows=VIEWERS, from_memory=True)
