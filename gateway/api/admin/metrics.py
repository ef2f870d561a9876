"""`GET /metrics`, and `/admin/v1/metrics`: what the process counts about itself, for Prometheus.

Writing them takes milliseconds: that is done on a thread, where the event loop is kept from turning
for no longer than threads take turns. One at a time: whoever comes meanwhile gets the same text.
"""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.api.admin.routing import VIEWERS, AdminOnly, AuthenticatesAdmins, admin_route
from gateway.services.one_flight import OneFlight
from gateway.telemetry.exposition import wants_open_metrics
from gateway.telemetry.metrics import Metrics


def metrics_routes(
    metrics: Metrics, auth: AuthenticatesAdmins, *, is_public: bool = False
) -> list[Route]:
    """Declare the routes; mount them in an application that handles `GatewayError`.

    `is_public`: `/metrics` asks for no token, as scrapers that have none expect.
    """

    scrapes: OneFlight[bool, tuple[bytes, str]] = OneFlight()

    async def show(request: Request) -> Response:
        is_open = wants_open_metrics(request.headers.get("accept", ""))
        body, content_type = await scrapes.ask(
            is_open, lambda: asyncio.to_thread(metrics.render, is_open=is_open)
        )
        return Response(body, headers={"content-type": content_type})

    guarded = AdminOnly(show, auth, VIEWERS, is_change=False, from_memory=True)
    return [
        admin_route("/metrics", "GET", show, auth, allows=VIEWERS, from_memory=True),
        Route("/metrics", show if is_public else guarded, methods=["GET"]),
    ]
