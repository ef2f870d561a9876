"""The admin API of the overload ladder: `GET /admin/v1/overload`.

Answers `{"level": 0 to 4, "name", "cause", "signals": {...}, "models": [...]}`: how hard the server
is pressed, by what, and what was measured last, each as a share of its bound but for `lag_s`. The
level is the highest of the process's own and those of its `models`, which have the same fields:
requests to one are refused for its own level and the process's. See
`gateway.services.health.overload` for the levels.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.api.admin.routing import VIEWERS, AuthenticatesAdmins, admin_answer, admin_route
from gateway.services.health import OverloadWatch
from gateway.services.health.overload import Level, Signals


def overload_route(overload: OverloadWatch, admin_auth: AuthenticatesAdmins) -> Route:
    """Declare the route; mount it in an application that handles `GatewayError`."""

    async def show(request: Request) -> Response:
        shown = _shown(overload.level, overload.cause, overload.signals)
        models = [
            {"model": name, **_shown(level, cause, signals)}
            for name, level, cause, signals in overload.models()
        ]
        return admin_answer(shown | {"models": models})

    return admin_route("/overload", "GET", show, admin_auth, allows=VIEWERS)


def _shown(level: Level, cause: str, signals: Signals) -> dict[str, Any]:
    return {
        "level": int(level),
        "name": level.name.lower(),
        "cause": cause,
        "signals": asdict(signals),
    }
