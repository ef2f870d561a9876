"""The admin API, `/admin/v1`: tenants and keys. It listens on a port of its own.

Every route needs an admin token, checked before the body is read. Lists are
`{"data": [...]}`, times are RFC 3339 in UTC, and a key's token (`"key"`) appears in the answer
that makes it, never again. The scheduler's routes are in `admin_scheduler`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, Final, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gateway.api.access import credential
from gateway.api.body import JsonBody, read_body
from gateway.domain import ApiKey, IssuedKey, Tenant, TenantSlo, Tier
from gateway.errors import InvalidRequest
from gateway.services.keys import KeyService
from gateway.services.tenants import TenantService

MAX_ADMIN_BODY_BYTES: Final = 1 << 20


class AuthenticatesAdmins(Protocol):
    async def authenticate(self, text: str) -> None: ...


class NewTenant(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    weight: float = 1.0
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    max_gap_ms: float | None = None


class TenantChanges(msgspec.Struct, forbid_unknown_fields=True):
    """Hold what is to change; a field that is absent stays, a null promise is taken back."""

    weight: float | msgspec.UnsetType = msgspec.UNSET
    ttft_ms: float | msgspec.UnsetType | None = msgspec.UNSET
    tpot_ms: float | msgspec.UnsetType | None = msgspec.UNSET
    max_gap_ms: float | msgspec.UnsetType | None = msgspec.UNSET


class NewKey(msgspec.Struct, forbid_unknown_fields=True):
    tenant: str
    name: str = "default"
    expires_in_s: float | None = None
    max_tier: Tier = Tier.DEFAULT


class TenantView(msgspec.Struct):
    id: str
    name: str
    weight: float
    ttft_ms: float | None
    tpot_ms: float | None
    max_gap_ms: float | None
    created_at: datetime


class KeyView(msgspec.Struct):
    id: str
    kid: str
    tenant: str
    name: str
    max_tier: Tier
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
    return [
        admin_route("/tenants", "GET", admin.list_tenants, admin_auth),
        admin_route("/tenants", "POST", admin.create_tenant, admin_auth),
        admin_route("/tenants/{name}", "PATCH", admin.update_tenant, admin_auth),
        admin_route("/keys", "GET", admin.list_keys, admin_auth),
        admin_route("/keys", "POST", admin.create_key, admin_auth),
        admin_route("/keys/{key_id}", "DELETE", admin.revoke_key, admin_auth),
    ]


AdminEndpoint = Callable[[Request], Awaitable[Response]]


def admin_route(
    path: str, method: str, endpoint: AdminEndpoint, auth: AuthenticatesAdmins
) -> Route:
    """Declare a route that an admin token opens; `path` is under `/admin/v1`."""
    return Route(f"/admin/v1{path}", AdminOnly(endpoint, auth), methods=[method])


async def admin_body(request: Request) -> bytes:
    """Read a body. Raises: `BodyTooLarge`, `ClientGone`."""
    return await read_body(request.scope, request.receive, max_bytes=MAX_ADMIN_BODY_BYTES)


def admin_answer(view: Any, status: int = 200) -> Response:  # whatever msgspec can encode
    """Answer with JSON that no cache keeps: it may show a token."""
    headers = {"cache-control": "no-store"}
    return Response(msgspec.json.encode(view), status, headers, media_type="application/json")


class AdminOnly:
    """Answer admins with `endpoint`; raise `AuthenticationFailed` for everyone else."""

    def __init__(self, endpoint: AdminEndpoint, auth: AuthenticatesAdmins) -> None:
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
        self._tenant_changes = JsonBody(TenantChanges)
        self._new_key = JsonBody(NewKey)

    async def list_tenants(self, request: Request) -> Response:
        tenants = await self._tenants.list()
        return admin_answer(TenantList([_tenant_view(tenant) for tenant in tenants]))

    async def create_tenant(self, request: Request) -> Response:
        body = self._new_tenant.decode(await admin_body(request))
        slo = TenantSlo(body.ttft_ms, body.tpot_ms, body.max_gap_ms)
        tenant = await self._tenants.create(body.name, weight=body.weight, slo=slo)
        return admin_answer(_tenant_view(tenant), 201)

    async def update_tenant(self, request: Request) -> Response:
        body = msgspec.structs.asdict(self._tenant_changes.decode(await admin_body(request)))
        changes = {name: value for name, value in body.items() if value is not msgspec.UNSET}
        return admin_answer(
            _tenant_view(await self._tenants.update(request.path_params["name"], changes))
        )

    async def list_keys(self, request: Request) -> Response:
        unknown = set(request.query_params) - {"tenant"}
        if unknown:
            name = min(unknown)
            raise InvalidRequest(f"Unknown query parameter '{name}'.", param=name)
        keys = await self._keys.list(request.query_params.get("tenant"))
        return admin_answer(KeyList([_key_view(key) for key in keys]))

    async def create_key(self, request: Request) -> Response:
        body = self._new_key.decode(await admin_body(request))
        issued = await self._keys.create(
            body.tenant,
            name=body.name,
            expires_in_s=body.expires_in_s,
            max_tier=body.max_tier,
        )
        return admin_answer(_issued_view(issued), 201)

    async def revoke_key(self, request: Request) -> Response:
        return admin_answer(_key_view(await self._keys.revoke(request.path_params["key_id"])))


def _tenant_view(tenant: Tenant) -> TenantView:
    return TenantView(
        id=str(tenant.id),
        name=tenant.name,
        weight=tenant.weight,
        ttft_ms=tenant.slo.ttft_ms,
        tpot_ms=tenant.slo.tpot_ms,
        max_gap_ms=tenant.slo.max_gap_ms,
        created_at=tenant.created_at,
    )


def _key_view(key: ApiKey) -> KeyView:
    return KeyView(
        id=str(key.id),
        kid=key.kid,
        tenant=key.tenant,
        name=key.name,
        max_tier=key.max_tier,
        status=key.status.value,
        created_at=key.created_at,
        expires_at=key.expires_at,
        last_used_at=key.last_used_at,
    )


def _issued_view(issued: IssuedKey) -> IssuedKeyView:
    view = msgspec.structs.asdict(_key_view(issued.key))
    return IssuedKeyView(**view, key=issued.token)
