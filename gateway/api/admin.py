"""The admin API, `/admin/v1`: tenants and keys. It listens on a port of its own.

Every route needs an admin token, checked before the body is read. Lists are
`{"data": [...]}`, times are RFC 3339 in UTC, and a key's token (`"key"`) appears in the answer
that makes it, never again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Final, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gateway.api.access import credential
from gateway.api.body import JsonBody, read_body
from gateway.domain import ApiKey, IssuedKey, Tenant
from gateway.errors import InvalidRequest
from gateway.services.keys import KeyService
from gateway.services.tenants import TenantService

MAX_ADMIN_BODY_BYTES: Final = 1 << 20


class AuthenticatesAdmins(Protocol):
    async def authenticate(self, text: str) -> None: ...


class NewTenant(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    weight: float = 1.0


class NewKey(msgspec.Struct, forbid_unknown_fields=True):
    tenant: str
    name: str = "default"
    expires_in_s: float | None = None


class TenantView(msgspec.Struct):
    id: str
    name: str
    weight: float
    created_at: datetime


class KeyView(msgspec.Struct):
    id: str
    kid: str
    tenant: str
    name: str
    status: str
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None


class IssuedKeyView(KeyView, kw_only=True):
    key: str


class TenantList(msgspec.Struct):
    data: list[TenantView]


class KeyList(msgspec.Struct):
    data: list[KeyView]


def admin_routes(
    tenants: TenantService, keys: KeyService, admin_auth: AuthenticatesAdmins
) -> list[Route]:
    """Declare the routes; mount them in an application that handles `GatewayError`."""
    admin = _Admin(tenants, keys)

    def route(path: str, method: str, endpoint: _Endpoint) -> Route:
        return Route(f"/admin/v1{path}", AdminOnly(endpoint, admin_auth), methods=[method])

    return [
        route("/tenants", "GET", admin.list_tenants),
        route("/tenants", "POST", admin.create_tenant),
        route("/keys", "GET", admin.list_keys),
        route("/keys", "POST", admin.create_key),
        route("/keys/{key_id}", "DELETE", admin.revoke_key),
    ]


_Endpoint = Callable[[Request], Awaitable[Response]]


class AdminOnly:
    """Answer admins with `endpoint`; raise `AuthenticationFailed` for everyone else."""

    def __init__(self, endpoint: _Endpoint, auth: AuthenticatesAdmins) -> None:
        self._endpoint = endpoint
        self._auth = auth

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._auth.authenticate(credential(scope))
        response = await self._endpoint(Request(scope, receive))
        await response(scope, receive, send)


class _Admin:
    def __init__(self, tenants: TenantService, keys: KeyService) -> None:
        self._tenants = tenants
        self._keys = keys
        self._new_tenant = JsonBody(NewTenant)
        self._new_key = JsonBody(NewKey)

    async def list_tenants(self, request: Request) -> Response:
        tenants = await self._tenants.list()
        return _json(TenantList([_tenant_view(tenant) for tenant in tenants]))

    async def create_tenant(self, request: Request) -> Response:
        body = self._new_tenant.decode(await _body(request))
        tenant = await self._tenants.create(body.name, weight=body.weight)
        return _json(_tenant_view(tenant), 201)

    async def list_keys(self, request: Request) -> Response:
        unknown = set(request.query_params) - {"tenant"}
        if unknown:
            name = min(unknown)
            raise InvalidRequest(f"Unknown query parameter '{name}'.", param=name)
        keys = await self._keys.list(request.query_params.get("tenant"))
        return _json(KeyList([_key_view(key) for key in keys]))

    async def create_key(self, request: Request) -> Response:
        body = self._new_key.decode(await _body(request))
        issued = await self._keys.create(
            body.tenant, name=body.name, expires_in_s=body.expires_in_s
        )
        return _json(_issued_view(issued), 201)

    async def revoke_key(self, request: Request) -> Response:
        return _json(_key_view(await self._keys.revoke(request.path_params["key_id"])))


async def _body(request: Request) -> bytes:
    return await read_body(request.receive, max_bytes=MAX_ADMIN_BODY_BYTES)


def _json(view: msgspec.Struct, status: int = 200) -> Response:
    # No cache may keep an answer that shows a token.
    headers = {"cache-control": "no-store"}
    return Response(msgspec.json.encode(view), status, headers, media_type="application/json")


def _tenant_view(tenant: Tenant) -> TenantView:
    return TenantView(
        id=str(tenant.id), name=tenant.name, weight=tenant.weight, created_at=tenant.created_at
    )


def _key_view(key: ApiKey) -> KeyView:
    return KeyView(
        id=str(key.id),
        kid=key.kid,
        tenant=key.tenant,
        name=key.name,
        status=key.status.value,
        created_at=key.created_at,
        expires_at=key.expires_at,
        last_used_at=key.last_used_at,
    )


def _issued_view(issued: IssuedKey) -> IssuedKeyView:
    view = msgspec.structs.asdict(_key_view(issued.key))
    return IssuedKeyView(**view, key=issued.token)
