"""The admin API of keys: `/admin/v1/keys`.

A key's token (`"key"`) appears in the answer that makes it, never again. In a path a key is named
by its id or its kid. `operator_set` names what an operator has set of it to hold it to something:
a tenant's owner who changes that gets 403 `set_by_operator`, and 400 `above_ceiling` for what is
beyond the tenant's ceilings, in whose bounds every key is used.
"""

from __future__ import annotations

from datetime import datetime

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.api.admin.routing import (
    EVERYONE,
    TENANT_OWNERS,
    AuthenticatesAdmins,
    actor_of,
    admin_answer,
    admin_body,
    admin_of,
    admin_route,
    conflicts_shown,
    named_fields,
    page_answer,
    page_query,
    wanted_version,
)
from gateway.api.body import JsonBody
from gateway.domain import ApiKey, IssuedKey, Tier
from gateway.services.admin import GRACE_S, KeyService


class NewKey(msgspec.Struct, forbid_unknown_fields=True):
    tenant: str
    name: str = "default"
    expires_in_s: float | None = None
    max_tier: Tier | None = None
    models: list[str] | None = None
    cidrs: list[str] | None = None
    allows_batch: bool = True
    admin_read: bool = False


class KeyChanges(msgspec.Struct, forbid_unknown_fields=True):
    """Hold what is to change; a field that is absent stays."""

    name: str | msgspec.UnsetType = msgspec.UNSET
    max_tier: Tier | msgspec.UnsetType = msgspec.UNSET
    models: list[str] | msgspec.UnsetType | None = msgspec.UNSET
    cidrs: list[str] | msgspec.UnsetType | None = msgspec.UNSET
    allows_batch: bool | msgspec.UnsetType = msgspec.UNSET
    admin_read: bool | msgspec.UnsetType = msgspec.UNSET
    version: int | None = None


class Rotation(msgspec.Struct, forbid_unknown_fields=True):
    grace_s: float = GRACE_S


class KeyView(msgspec.Struct):
    id: str
    kid: str
    tenant: str
    name: str
    max_tier: Tier
    models: tuple[str, ...] | None
    cidrs: tuple[str, ...] | None
    allows_batch: bool
    admin_read: bool
    status: str
    version: int
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    old_secret_expires_at: datetime | None
    operator_set: tuple[str, ...]


class IssuedKeyView(KeyView, kw_only=True):
    key: str


def key_routes(keys: KeyService, auth: AuthenticatesAdmins) -> list[Route]:
    """Declare the routes; mount them in an application that handles `GatewayError`."""
    admin = _Keys(keys)
    return [
        admin_route("/keys", "GET", admin.page, auth, allows=EVERYONE),
        admin_route("/keys", "POST", admin.create, auth, allows=TENANT_OWNERS),
        admin_route("/keys/{key_id}", "GET", admin.show, auth, allows=EVERYONE),
        admin_route("/keys/{key_id}", "PATCH", admin.update, auth, allows=TENANT_OWNERS),
        admin_route("/keys/{key_id}", "DELETE", admin.revoke, auth, allows=TENANT_OWNERS),
        admin_route("/keys/{key_id}/rotate", "POST", admin.rotate, auth, allows=TENANT_OWNERS),
    ]


class _Keys:
    def __init__(self, keys: KeyService) -> None:
        self._keys = keys
        self._new_key = JsonBody(NewKey)
        self._changes = JsonBody(KeyChanges)
        self._rotation = JsonBody(Rotation)

    async def page(self, request: Request) -> Response:
        asked, params = page_query(request, "tenant")
        within = admin_of(request).tenant_id
        page = await self._keys.page(asked, tenant=params.get("tenant"), within=within)
        return page_answer(page, _key_view)

    async def create(self, request: Request) -> Response:
        body = self._new_key.decode(await admin_body(request))
        issued = await self._keys.create(
            actor_of(request),
            body.tenant,
            name=body.name,
            expires_in_s=body.expires_in_s,
            max_tier=body.max_tier,
            models=body.models,
            cidrs=body.cidrs,
            allows_batch=body.allows_batch,
            admin_read=body.admin_read,
            within=admin_of(request).tenant_id,
        )
        return admin_answer(_issued_view(issued), 201)

    async def show(self, request: Request) -> Response:
        within = admin_of(request).tenant_id
        key = await self._keys.get(request.path_params["key_id"], within=within)
        return admin_answer(_key_view(key))

    async def update(self, request: Request) -> Response:
        raw = await admin_body(request)
        body = self._changes.decode(raw)
        with conflicts_shown(_key_view, raw):
            key = await self._keys.update(
                actor_of(request),
                request.path_params["key_id"],
                named_fields(body, "version"),
                version=wanted_version(request, body.version),
                within=admin_of(request).tenant_id,
            )
        return admin_answer(_key_view(key))

    async def rotate(self, request: Request) -> Response:
        body = self._rotation.decode(await admin_body(request) or b"{}")
        issued = await self._keys.rotate(
            actor_of(request),
            request.path_params["key_id"],
            grace_s=body.grace_s,
            within=admin_of(request).tenant_id,
        )
        return admin_answer(_issued_view(issued))

    async def revoke(self, request: Request) -> Response:
        key = await self._keys.revoke(
            actor_of(request),
            request.path_params["key_id"],
            within=admin_of(request).tenant_id,
        )
        return admin_answer(_key_view(key))


def _key_view(key: ApiKey) -> KeyView:
    return KeyView(
        id=str(key.id),
        kid=key.kid,
        tenant=key.tenant,
        name=key.name,
        max_tier=key.max_tier,
        models=key.models,
        cidrs=key.cidrs,
        allows_batch=key.allows_batch,
        admin_read=key.admin_read,
        status=key.status.value,
        version=key.version,
        created_at=key.created_at,
        expires_at=key.expires_at,
        last_used_at=key.last_used_at,
        old_secret_expires_at=key.old_secret_expires_at,
        operator_set=key.operator_set,
    )


def _issued_view(issued: IssuedKey) -> IssuedKeyView:
    view = msgspec.structs.asdict(_key_view(issued.key))
    return IssuedKeyView(**view, key=issued.token)
