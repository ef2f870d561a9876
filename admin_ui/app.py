"""The UI as one application, and its place beside the admin API.

Errors become pages. Statuses are those of the API (`gateway.api.errors`), so that a program that
asks for a page learns the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, NoMatchFound, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from admin_ui.pages import Pages
from admin_ui.routes.audit import audit_routes
from admin_ui.routes.batches import batch_routes
from admin_ui.routes.components import component_routes
from admin_ui.routes.keys import key_routes
from admin_ui.routes.overview import overview_routes
from admin_ui.routes.plans import plan_routes
from admin_ui.routes.requests import request_routes
from admin_ui.routes.scheduler import scheduler_routes
from admin_ui.routes.settings import settings_routes
from admin_ui.routes.shell import shell_routes
from admin_ui.routes.tenant import tenant_detail_routes
from admin_ui.routes.tenant_limits import tenant_limit_routes
from admin_ui.routes.tenants import tenant_routes
from admin_ui.routes.what_if import what_if_routes
from admin_ui.services import UiServices
from gateway.api.errors import classify
from gateway.errors import GatewayError, InternalFailure, StoreUnavailable

ROOTS: Final = ("/admin", "/portal")
_API: Final = "/admin/v1"
_TITLES: Final = {
    400: "That cannot be done",
    403: "Not for your role",
    404: "Nothing is here",
    405: "Not like that",
    409: "It was changed meanwhile",
    503: "Not available now",
}

Guard = Callable[[ASGIApp], ASGIApp]


def screens_of(services: UiServices, pages: Pages) -> list[Route]:
    """Declare every screen."""
    return [
        *overview_routes(services, pages),
        *tenant_routes(services, pages),
        *tenant_limit_routes(services, pages),
        *tenant_detail_routes(services, pages),
        *key_routes(services, pages),
        *plan_routes(services, pages),
        *request_routes(services, pages),
        *batch_routes(services, pages),
        *scheduler_routes(services, pages),
        *what_if_routes(services, pages),
        *audit_routes(services, pages),
        *settings_routes(services, pages),
        *shell_routes(),
        *component_routes(pages),
    ]


def ui_app(routes: Sequence[Route], pages: Pages) -> ASGIApp:
    """Assemble the UI; who may reach it is decided by what wraps it."""

    async def on_gateway_error(request: Request, exc: Exception) -> Response:
        assert isinstance(exc, GatewayError)
        return _problem(request, pages, classify(exc)[0], exc)

    async def on_http(request: Request, exc: Exception) -> Response:
        assert isinstance(exc, HTTPException)
        return _problem(request, pages, exc.status_code, None)

    async def on_unexpected(request: Request, exc: Exception) -> Response:
        return _problem(request, pages, 500, InternalFailure())

    handlers: dict[Any, Any] = {
        GatewayError: on_gateway_error,
        HTTPException: on_http,
        Exception: on_unexpected,
    }
    app = Starlette(routes=list(routes), exception_handlers=handlers)
    app.router.redirect_slashes = False
    return app


def _problem(request: Request, pages: Pages, status: int, exc: GatewayError | None) -> Response:
    """Say on a page what went wrong, what it means, and what to try."""
    context = {
        "status": status,
        "heading": _TITLES.get(status, "Something went wrong"),
        "message": exc.message if exc is not None else "There is no such page.",
        "may_retry": status >= 500,
        "is_store": isinstance(exc, StoreUnavailable),
    }
    is_known = request.scope.get("state", {}).get("admin") is not None
    template = "problem.html" if is_known else "problem_bare.html"
    return pages.answer(request, template, context, status=status)


class UiRoute(BaseRoute):
    """Take what is below the roots and not of the admin API, for an application of its own."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        path: str = scope["path"]
        if scope["type"] != "http" or not _is_page(path):
            return Match.NONE, {}
        return Match.FULL, {"endpoint": self.app}

    def url_path_for(self, name: str, /, **path_params: Any) -> Any:
        raise NoMatchFound(name, path_params)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


def _is_page(path: str) -> bool:
    return any(_is_below(path, root) for root in ROOTS) and not _is_below(path, _API)


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(root + "/")
