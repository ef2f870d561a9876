"""Reading and inserting keys: what their repository and the first start share."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Row, Select, func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.domain import (
    ApiKey,
    KeyDraft,
    KeyRecord,
    KeySecret,
    KeyStatus,
    Principal,
    Tenant,
    Tier,
)
from gateway.domain.admin import Actor, AuditEntry
from gateway.domain.quota import ScopeQuota
from gateway.store.audit_chain import AuditChain
from gateway.store.organisations import slo_of
from gateway.store.tables import key_secrets, keys, orgs, tenants

_SCOPES = (
    keys.c.max_tier,
    keys.c.models,
    keys.c.cidrs,
    keys.c.allows_batch,
    keys.c.admin_read,
)


async def insert_key(
    connection: AsyncConnection, audit: AuditChain, actor: Actor, tenant: Tenant, draft: KeyDraft
) -> ApiKey:
    """Insert a key and its first secret in the caller's transaction, with its audit record."""
    key_id = uuid4()
    await connection.execute(
        insert(keys).values(
            id=key_id,
            tenant_id=tenant.id,
            kid=draft.kid,
            name=draft.name,
            expires_at=draft.expires_at,
            max_tier=draft.max_tier.value,
            models=draft.models,
            cidrs=draft.cidrs,
            allows_batch=draft.allows_batch,
            admin_read=draft.admin_read,
            operator_set=draft.operator_set,
        )
    )
    await insert_secret(connection, key_id, tenant.id, draft.secret)
    key = api_key((await connection.execute(described_keys().where(keys.c.id == key_id))).one())
    await audit_key(connection, audit, actor, "key.create", tenant.organisation_id, None, key)
    return key


async def insert_secret(
    connection: AsyncConnection, key_id: UUID, tenant_id: UUID, secret: KeySecret
) -> None:
    """Give a key one more secret."""
    await connection.execute(
        insert(key_secrets).values(
            id=uuid4(),
            key_id=key_id,
            tenant_id=tenant_id,
            pepper_id=secret.pepper_id,
            mac=secret.mac,
            expires_at=secret.expires_at,
            is_tagged=secret.is_tagged,
        )
    )


async def audit_key(
    connection: AsyncConnection,
    audit: AuditChain,
    actor: Actor,
    action: str,
    organisation_id: UUID,
    before: ApiKey | None,
    after: ApiKey,
) -> None:
    """Tell the audit log of a change of a key."""
    entry = key_entry(action, organisation_id, before, after)
    await audit.append(connection, actor, entry)


def key_entry(
    action: str, organisation_id: UUID, before: ApiKey | None, after: ApiKey
) -> AuditEntry:
    """Describe a change of a key."""
    return AuditEntry(
        action=action,
        object_kind="key",
        object_id=str(after.id),
        organisation_id=organisation_id,
        tenant_id=after.tenant_id,
        before=None if before is None else _public(before),
        after=_public(after),
    )


def described_keys() -> Select[*tuple[Any, ...]]:
    """Select what `api_key` reads."""
    old_secret = (
        select(func.max(key_secrets.c.expires_at))
        .where(key_secrets.c.key_id == keys.c.id, key_secrets.c.expires_at > func.now())
        .scalar_subquery()
    )
    return select(
        *keys.c,
        tenants.c.name.label("tenant"),
        tenants.c.organisation_id,
        old_secret.label("old_secret_expires_at"),
    ).join_from(keys, tenants, keys.c.tenant_id == tenants.c.id)


def api_key(row: Row[*tuple[Any, ...]]) -> ApiKey:
    """Read a key from a row of `described_keys`."""
    return ApiKey(
        id=row.id,
        tenant_id=row.tenant_id,
        tenant=row.tenant,
        kid=row.kid,
        name=row.name,
        status=_status(row.revoked_at, row.expires_at),
        created_at=row.created_at,
        expires_at=row.expires_at,
        last_used_at=row.last_used_at,
        version=row.version,
        old_secret_expires_at=row.old_secret_expires_at,
        operator_set=tuple(row.operator_set),
        **_scopes(row),
    )


def key_proofs() -> Select[*tuple[Any, ...]]:
    """Select what `key_record` reads: a row for each secret of a key."""
    return (
        select(
            keys.c.id,
            keys.c.kid,
            keys.c.revoked_at,
            keys.c.expires_at,
            *_SCOPES,
            tenants.c.id.label("tenant_id"),
            tenants.c.organisation_id,
            tenants.c.plan_id,
            tenants.c.name.label("tenant"),
            tenants.c.weight,
            tenants.c.org_id,
            orgs.c.weight.label("org_weight"),
            tenants.c.ttft_ms,
            tenants.c.tpot_ms,
            tenants.c.max_gap_ms,
            tenants.c.max_tier.label("tenant_max_tier"),
            tenants.c.models.label("tenant_models"),
            tenants.c.cidrs.label("tenant_cidrs"),
            tenants.c.trace_prompts,
            key_secrets.c.pepper_id,
            key_secrets.c.mac,
            key_secrets.c.expires_at.label("secret_expires_at"),
        )
        .join_from(keys, tenants, keys.c.tenant_id == tenants.c.id)
        .join(orgs, tenants.c.org_id == orgs.c.id, isouter=True)
        .join(key_secrets, key_secrets.c.key_id == keys.c.id)
    )


def key_record(
    rows: Sequence[Row[*tuple[Any, ...]]],
    quotas: tuple[ScopeQuota, ...],
    changes_at: datetime | None,
) -> KeyRecord:
    """Read what authenticates a key from its rows of `key_proofs`."""
    first = rows[0]
    scopes = _scopes(first)
    # Names of models may be aliases, which are known where they are served: both lists go there.
    scopes["max_tier"] = scopes["max_tier"].capped(Tier(first.tenant_max_tier))
    return KeyRecord(
        principal=Principal(
            organisation_id=first.organisation_id,
            tenant_id=first.tenant_id,
            tenant=first.tenant,
            weight=first.weight,
            org_id=first.org_id,
            org_weight=1.0 if first.org_id is None else first.org_weight,
            key_id=first.id,
            kid=first.kid,
            slo=slo_of(first),
            quotas=quotas,
            tenant_models=_names(first.tenant_models),
            tenant_cidrs=_names(first.tenant_cidrs),
            trace_prompts=first.trace_prompts,
            **scopes,
        ),
        secrets=tuple(KeySecret(row.pepper_id, row.mac, row.secret_expires_at) for row in rows),
        revoked_at=first.revoked_at,
        expires_at=first.expires_at,
        changes_at=changes_at,
    )


def _scopes(row: Row[*tuple[Any, ...]]) -> dict[str, Any]:
    return {
        "max_tier": Tier(row.max_tier),
        "models": _names(row.models),
        "cidrs": _names(row.cidrs),
        "allows_batch": row.allows_batch,
        "admin_read": row.admin_read,
    }


def _names(column: list[str] | None) -> tuple[str, ...] | None:
    return None if column is None else tuple(column)


def _status(revoked_at: datetime | None, expires_at: datetime | None) -> KeyStatus:
    if revoked_at is not None:
        return KeyStatus.REVOKED
    if expires_at is not None and expires_at <= datetime.now(UTC):
        return KeyStatus.EXPIRED
    return KeyStatus.ACTIVE


def _public(key: ApiKey) -> dict[str, Any]:
    ends = (key.expires_at, key.old_secret_expires_at)
    expires_at, old_secret_expires_at = (None if at is None else at.isoformat() for at in ends)
    return {
        "tenant": key.tenant,
        "kid": key.kid,
        "name": key.name,
        "status": key.status.value,
        "expires_at": expires_at,
        "max_tier": key.max_tier.value,
        "models": key.models,
        "cidrs": key.cidrs,
        "allows_batch": key.allows_batch,
        "admin_read": key.admin_read,
        "old_secret_expires_at": old_secret_expires_at,
        "operator_set": key.operator_set,
    }
