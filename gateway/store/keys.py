"""Keys, their secrets and admin tokens in PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import ColumnElement, Row, Select, bindparam, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.domain import ApiKey, KeyRecord, KeySecret, KeyStatus, Principal, Tenant, Tier
from gateway.domain.quota import ScopeQuota
from gateway.store.database import Database
from gateway.store.organisations import slo_of
from gateway.store.quota_settings import quotas_in_force
from gateway.store.tables import admin_tokens, key_secrets, keys, tenants


class SqlKeys:
    """Implement `KeyStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(
        self,
        tenant: Tenant,
        *,
        kid: str,
        name: str,
        secret: KeySecret,
        expires_at: datetime | None,
        max_tier: Tier,
    ) -> ApiKey:
        async with self._database.tenant(tenant.id) as connection:
            return await insert_key(
                connection,
                tenant,
                kid=kid,
                name=name,
                secret=secret,
                expires_at=expires_at,
                max_tier=max_tier,
            )

    async def list(self, organisation_id: UUID, tenant_id: UUID | None) -> Sequence[ApiKey]:
        query = _described().where(tenants.c.organisation_id == organisation_id)
        query = query.order_by(keys.c.created_at, keys.c.kid)
        if tenant_id is None:
            async with self._database.platform() as connection:
                return [_api_key(row) for row in await connection.execute(query)]
        async with self._database.tenant(tenant_id) as connection:
            query = query.where(keys.c.tenant_id == tenant_id)
            return [_api_key(row) for row in await connection.execute(query)]

    async def revoke(self, organisation_id: UUID, key: UUID | str) -> ApiKey | None:
        named: ColumnElement[bool] = (
            keys.c.id == key if isinstance(key, UUID) else keys.c.kid == key
        )
        owned = keys.c.tenant_id == tenants.c.id
        ours = tenants.c.organisation_id == organisation_id
        async with self._database.platform() as connection:
            await connection.execute(
                update(keys)
                .where(named, owned, ours, keys.c.revoked_at.is_(None))
                .values(revoked_at=func.now())
            )
            row = (await connection.execute(_described().where(named, ours))).one_or_none()
        return None if row is None else _api_key(row)

    async def find(self, kid: str) -> KeyRecord | None:
        query = (
            select(
                keys.c.id,
                keys.c.kid,
                keys.c.revoked_at,
                keys.c.expires_at,
                keys.c.max_tier,
                keys.c.models,
                keys.c.cidrs,
                keys.c.allows_batch,
                keys.c.admin_read,
                tenants.c.id.label("tenant_id"),
                tenants.c.organisation_id,
                tenants.c.plan_id,
                tenants.c.name.label("tenant"),
                tenants.c.weight,
                tenants.c.ttft_ms,
                tenants.c.tpot_ms,
                tenants.c.max_gap_ms,
                key_secrets.c.pepper_id,
                key_secrets.c.mac,
                key_secrets.c.expires_at.label("secret_expires_at"),
            )
            .join_from(keys, tenants, keys.c.tenant_id == tenants.c.id)
            .join(key_secrets, key_secrets.c.key_id == keys.c.id)
            .where(keys.c.kid == kid)
        )
        async with self._database.platform() as connection:
            rows = (await connection.execute(query)).all()
            if not rows:
                return None
            quotas, changes_at = await quotas_in_force(
                connection,
                key_id=rows[0].id,
                tenant_id=rows[0].tenant_id,
                plan_id=rows[0].plan_id,
                organisation_id=rows[0].organisation_id,
            )
        return _key_record(rows, quotas, changes_at)

    async def touch(self, used: Mapping[UUID, datetime]) -> None:
        statement = (
            update(keys)
            .where(keys.c.id == bindparam("key_id"))
            .values(last_used_at=func.greatest(keys.c.last_used_at, bindparam("at")))
        )
        # In one order everywhere, so that two gateways cannot block each other in a circle.
        rows = [{"key_id": key, "at": used[key]} for key in sorted(used)]
        if rows:
            async with self._database.platform() as connection:
                await connection.execute(statement, rows)


class SqlAdminTokens:
    """Implement `AdminTokenStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, kid: str) -> KeySecret | None:
        query = select(admin_tokens.c.pepper_id, admin_tokens.c.mac).where(
            admin_tokens.c.kid == kid
        )
        async with self._database.platform() as connection:
            row = (await connection.execute(query)).one_or_none()
        return None if row is None else KeySecret(pepper_id=row.pepper_id, mac=row.mac)


async def insert_key(
    connection: AsyncConnection,
    tenant: Tenant,
    *,
    kid: str,
    name: str,
    secret: KeySecret,
    expires_at: datetime | None,
    max_tier: Tier,
) -> ApiKey:
    """Insert a key and its first secret in the caller's transaction."""
    statement = insert(keys).values(
        id=uuid4(),
        tenant_id=tenant.id,
        kid=kid,
        name=name,
        expires_at=expires_at,
        max_tier=max_tier.value,
    )
    row = (await connection.execute(statement.returning(*keys.c))).one()
    await connection.execute(
        insert(key_secrets).values(
            id=uuid4(),
            key_id=row.id,
            tenant_id=tenant.id,
            pepper_id=secret.pepper_id,
            mac=secret.mac,
            expires_at=secret.expires_at,
        )
    )
    return _api_key(row, tenant=tenant.name)


def _described() -> Select[*tuple[Any, ...]]:
    return select(*keys.c, tenants.c.name.label("tenant")).join_from(
        keys, tenants, keys.c.tenant_id == tenants.c.id
    )


def _api_key(row: Row[*tuple[Any, ...]], tenant: str | None = None) -> ApiKey:
    return ApiKey(
        id=row.id,
        tenant_id=row.tenant_id,
        tenant=row.tenant if tenant is None else tenant,
        kid=row.kid,
        name=row.name,
        status=_status(row.revoked_at, row.expires_at),
        created_at=row.created_at,
        expires_at=row.expires_at,
        last_used_at=row.last_used_at,
        max_tier=Tier(row.max_tier),
    )


def _status(revoked_at: datetime | None, expires_at: datetime | None) -> KeyStatus:
    if revoked_at is not None:
        return KeyStatus.REVOKED
    if expires_at is not None and expires_at <= datetime.now(UTC):
        return KeyStatus.EXPIRED
    return KeyStatus.ACTIVE


def _key_record(
    rows: Sequence[Row[*tuple[Any, ...]]],
    quotas: tuple[ScopeQuota, ...],
    changes_at: datetime | None,
) -> KeyRecord:
    first = rows[0]
    return KeyRecord(
        principal=Principal(
            organisation_id=first.organisation_id,
            tenant_id=first.tenant_id,
            tenant=first.tenant,
            weight=first.weight,
            key_id=first.id,
            kid=first.kid,
            max_tier=Tier(first.max_tier),
            slo=slo_of(first),
            quotas=quotas,
            models=None if first.models is None else tuple(first.models),
            cidrs=None if first.cidrs is None else tuple(first.cidrs),
            allows_batch=first.allows_batch,
            admin_read=first.admin_read,
        ),
        secrets=tuple(KeySecret(row.pepper_id, row.mac, row.secret_expires_at) for row in rows),
        revoked_at=first.revoked_at,
        expires_at=first.expires_at,
        changes_at=changes_at,
    )
