"""The admin API of admin tokens: `/admin/v1/tokens`.

A token (`"token"`) appears in the answer that makes it, never again. In a path it is named by its
id or its kid.
"""

from __future__ import annotations

from datetime import datetime

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.api.admin.routing import (
    OWNERS,
    AuthenticatesAdmins,
    actor_of,
    admin_answer,
    admin_body,
    admin_of,
    admin_route,
    page_answer,
    page_query,
)
from gateway.api.body import JsonBody
from gateway.domain.admin import AdminRole, AdminToken
from gateway.services.admin import AdminTokenService


class NewToken(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    role: AdminRole
    tenant: str | None = None
    expires_in_s: float | None = None


class TokenView(msgspec.Struct):
    id: str
    kid: str
    name: str
    role: AdminRole
    tenant: str | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None


class IssuedTokenView(TokenView, kw_only=True):
    token: str


def token_routes(tokens: AdminTokenService, auth: AuthenticatesAdmins) -> list[Route]:
    """Declare the routes; mount them in an application that handles `GatewayError`."""
    new_token = JsonBody(NewToken)

    async def page(request: Request) -> Response:
        asked, _ = page_query(request)
        return page_answer(await tokens.page(asked), _token_view)

    async def create(request: Request) -> Response:
        body = new_token.decode(await admin_body(request))
        issued = await tokens.create(
            admin_of(request),
            actor_of(request),
            name=body.name,
            role=body.role,
            tenant=body.tenant,
            expires_in_s=body.expires_in_s,
        )
        view = msgspec.structs.asdict(_token_view(issued.admin_token))
        return admin_answer(IssuedTokenView(**view, token=issued.text), 201)

    async def revoke(request: Request) -> Response:
        token_id = request.path_params["token_id"]
        token = await tokens.revoke(admin_of(request), actor_of(request), token_id)
        return admin_answer(_token_view(token))

    return [
        admin_route("/tokens", "GET", page, auth, allows=OWNERS),
        admin_route("/tokens", "POST", create, auth, allows=OWNERS),
        admin_route("/tokens/{token_id}", "DELETE", revoke, auth, allows=OWNERS),
    ]


def _token_view(token: AdminToken) -> TokenView:
    return TokenView(
        id=str(token.id),
        kid=token.kid,
        name=token.name,
        role=token.role,
        tenant=token.tenant,
        created_at=token.created_at,
        expires_at=token.expires_at,
        revoked_at=token.revoked_at,
    )
