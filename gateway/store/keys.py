"""Keys and their secrets in PostgreSQL."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Row,
    Text,
    any_,
    bindparam,
    delete,
    func,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.domain import (
    ApiKey,
    KeyDraft,
    KeyRecord,
    KeyRef,
    KeySecret,
    KeyStatus,
    Tenant,
)
from gateway.domain.admin import Actor
from gateway.domain.ceilings import held_fields
from gateway.domain.page import Page, PageRequest
from gateway.errors import AboveCeiling, Conflict, SetByOperator, VersionConflict
from gateway.store.audit_chain import AuditChain
from gateway.store.database import Database
from gateway.store.key_rows import (
    api_key,
    audit_key,
    described_keys,
    insert_key,
    insert_secret,
    key_proofs,
    key_record,
)
from gateway.store.keyset import Keyset
from gateway.store.organisations import hold_tenant
from gateway.store.pools import Purpose
from gateway.store.quota_rows import quotas_in_force
from gateway.store.tables import key_secrets, keys, tenants

_ORDER: Final = Keyset((keys.c.created_at, keys.c.id))


class SqlKeys:
    """Implement `KeyStore`."""

    def __init__(self, database: Database, audit: AuditChain) -> None:
        self._database = database
        self._audit = audit

    async def add(self, actor: Actor, tenant: Tenant, draft: KeyDraft) -> ApiKey:
        async with self._database.platform() as connection:
            await _check_room(connection, tenant)
            return await insert_key(connection, self._audit, actor, tenant, draft)

    async def page(
        self,
        organisation_id: UUID,
        tenant_id: UUID | None,
        request: PageRequest,
        *,
        is_live: bool = False,
    ) -> Page[ApiKey]:
        query = described_keys().where(tenants.c.organisation_id == organisation_id)
        if is_live:
            query = query.where(*_live())
        if tenant_id is None:
            async with self._database.platform() as connection:
                return await _ORDER.page(connection, query, request, api_key)
        async with self._database.tenant(tenant_id) as connection:
            query = query.where(keys.c.tenant_id == tenant_id)
            return await _ORDER.page(connection, query, request, api_key)

    async def get(self, ref: KeyRef) -> ApiKey | None:
        if ref.tenant_id is None:
            async with self._database.platform() as connection:
                row = await _named(connection, ref)
        else:
            async with self._database.tenant(ref.tenant_id) as connection:
                row = await _named(connection, ref)
        return None if row is None else api_key(row)

    async def update(
        self,
        actor: Actor,
        ref: KeyRef,
        changes: Mapping[str, object],
        *,
        version: int | None = None,
    ) -> ApiKey | None:
        async with self._database.platform() as connection:
            before = await _locked(connection, ref)
            if before is None:
                return None
            if version not in (None, before.version):
                raise VersionConflict(before)
            wanted = {
                name: value for name, value in changes.items() if getattr(before, name) != value
            }
            held = before.operator_set
            if not actor.is_of_tenant:
                held = held_fields(held, changes)
            elif touched := wanted.keys() & set(held):
                raise SetByOperator(touched)
            if not wanted and held == before.operator_set:
                return before
            values = {**wanted, "operator_set": held}
            return await _changed(connection, self._audit, actor, "key.update", ref, before, values)

    async def revoke(self, actor: Actor, ref: KeyRef) -> ApiKey | None:
        async with self._database.platform() as connection:
            before = await _locked(connection, ref)
            if before is None or before.status is KeyStatus.REVOKED:
                return before
            gone = {"revoked_at": func.now()}
            return await _changed(connection, self._audit, actor, "key.revoke", ref, before, gone)

    async def rotate(
        self, actor: Actor, ref: KeyRef, secret: KeySecret, *, old_ends_at: datetime | None
    ) -> ApiKey | None:
        async with self._database.platform() as connection:
            before = await _locked(connection, ref)
            if before is None:
                return None
            if before.status is not KeyStatus.ACTIVE:
                raise Conflict(f"The key is {before.status.value}; issue a new one.")
            mine = key_secrets.c.key_id == before.id
            # One live secret stays beside the new one: what an earlier rotation left ends now.
            leaving = mine if old_ends_at is None else mine & key_secrets.c.expires_at.is_not(None)
            await connection.execute(delete(key_secrets).where(leaving))
            await connection.execute(update(key_secrets).where(mine).values(expires_at=old_ends_at))
            await insert_secret(connection, before.id, before.tenant_id, secret)
            return await _changed(connection, self._audit, actor, "key.rotate", ref, before, {})

    async def find(self, kid: str) -> KeyRecord | None:
        return await self._record(keys.c.kid == kid)

    async def of_id(self, key_id: UUID) -> KeyRecord | None:
        return await self._record(keys.c.id == key_id)

    async def _record(self, is_it: ColumnElement[bool]) -> KeyRecord | None:
        async with self._database.platform(Purpose.AUTH) as connection:
            rows = (await connection.execute(key_proofs().where(is_it))).all()
            if not rows:
                return None
            quotas, changes_at = await quotas_in_force(
                connection,
                key_id=rows[0].id,
                tenant_id=rows[0].tenant_id,
                plan_id=rows[0].plan_id,
                organisation_id=rows[0].organisation_id,
            )
        return key_record(rows, quotas, changes_at)

    async def dead(self, kids: Collection[str]) -> set[str]:
        asked = keys.c.kid == any_(literal(list(kids), ARRAY(Text)))
        query = select(keys.c.kid).where(asked, *_live())
        async with self._database.platform(Purpose.AUTH) as connection:
            return set(kids) - set(await connection.scalars(query))

    async def touch(self, used: Mapping[UUID, datetime]) -> None:
        statement = (
            update(keys)
            .where(keys.c.id == bindparam("key_id"))
            .values(last_used_at=func.greatest(keys.c.last_used_at, bindparam("at")))
        )
        # In one order everywhere, so that two gateways cannot block each other in a circle.
        rows = [{"key_id": key, "at": used[key]} for key in sorted(used)]
        if rows:
            async with self._database.platform(Purpose.AUTH) as connection:
                await connection.execute(statement, rows)


async def _check_room(connection: AsyncConnection, tenant: Tenant) -> None:
    """Let one key of a tenant be added at a time, up to its ceiling.

    Raises: `AboveCeiling`; `NotFound`: it was archived meanwhile.
    """
    max_keys = await hold_tenant(connection, tenant.id)
    if max_keys is None:
        return
    live = select(func.count()).where(keys.c.tenant_id == tenant.id, *_live())
    num_keys = await connection.scalar(live)
    assert num_keys is not None, "a count is a number"
    if num_keys >= max_keys:
        raise AboveCeiling(
            f"The tenant has {num_keys} live keys, and may have {max_keys}: revoke one, or have an "
            "operator raise its ceiling.",
            param="tenant",
        )


def _live() -> tuple[ColumnElement[bool], ...]:
    lives = or_(keys.c.expires_at.is_(None), keys.c.expires_at > func.now())
    return keys.c.revoked_at.is_(None), lives


async def _named(
    connection: AsyncConnection, ref: KeyRef, *, lock: bool = False
) -> Row[*tuple[Any, ...]] | None:
    query = described_keys().where(
        keys.c.id == ref.named if isinstance(ref.named, UUID) else keys.c.kid == ref.named,
        tenants.c.organisation_id == ref.organisation_id,
    )
    if ref.tenant_id is not None:
        query = query.where(keys.c.tenant_id == ref.tenant_id)
    if lock:
        query = query.with_for_update(of=keys, key_share=True)
    return (await connection.execute(query)).one_or_none()


async def _locked(connection: AsyncConnection, ref: KeyRef) -> ApiKey | None:
    row = await _named(connection, ref, lock=True)
    return None if row is None else api_key(row)


async def _changed(
    connection: AsyncConnection,
    audit: AuditChain,
    actor: Actor,
    action: str,
    ref: KeyRef,
    before: ApiKey,
    changes: Mapping[str, object],
) -> ApiKey:
    """Write a change of a locked key as its next version, with its audit record."""
    await connection.execute(
        update(keys).where(keys.c.id == before.id).values(**changes, version=keys.c.version + 1)
    )
    row = await _named(connection, ref)
    assert row is not None, "it is locked"
    after = api_key(row)
    await audit_key(connection, audit, actor, action, ref.organisation_id, before, after)
    return after
