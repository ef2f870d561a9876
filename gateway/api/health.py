"""`/livez` and `/readyz`: for a process supervisor and for a load balancer.

Liveness knows no dependency: a restart mends none of them. Readiness is withdrawn when this
process cannot serve a request.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from gateway.services.models import ModelRegistry


class Health:
    """Answer probes. `draining` tells whether the process is on its way out."""

    def __init__(self, models: ModelRegistry, draining: Callable[[], bool]) -> None:
        self._models = models
        self._draining = draining

    async def live(self, request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def ready(self, request: Request) -> Response:
        if self._draining():
            return PlainTextResponse("draining\n", 503)
        if not all(model.service.healthy for model in self._models):
            return PlainTextResponse("engine failed\n", 503)
        return PlainTextResponse("ok\n")
