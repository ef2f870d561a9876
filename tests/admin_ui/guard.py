"""Stand-ins for the guard of the UI: who speaks is what the test says."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.domain.admin import Admin, AdminRole
from gateway.services.sign_in.sessions import Watched

FORM_TOKEN = "form-token"
_ORGANISATION = UUID(int=1)


def as_admin(
    role: AdminRole = AdminRole.OWNER,
    *,
    organisation_id: UUID = _ORGANISATION,
    tenant_id: UUID | None = None,
) -> Callable[[ASGIApp], ASGIApp]:
    """Let everybody through as an admin of that role."""
    admin = Admin("ann", role, organisation_id, tenant_id)

    def guard(app: ASGIApp) -> ASGIApp:
        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            # Nobody ends this session.
            state = {"admin": admin, "form_token": FORM_TOKEN, "watched": Watched()}
            scope.setdefault("state", {}).update(state)
            await app(scope, receive, send)

        return guarded

    return guard


def by_root(
    of_platform: Callable[[ASGIApp], ASGIApp], of_tenant: Callable[[ASGIApp], ASGIApp]
) -> Callable[[ASGIApp], ASGIApp]:
    """Let everybody through, below the portal as one and elsewhere as another."""

    def guard(app: ASGIApp) -> ASGIApp:
        platform, tenant = of_platform(app), of_tenant(app)

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            is_portal = scope["path"].startswith("/portal")
            await (tenant if is_portal else platform)(scope, receive, send)

        return guarded

    return guard


def stranger(app: ASGIApp) -> ASGIApp:
    """Let everybody through as nobody."""
    return app
