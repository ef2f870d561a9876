"""Admin tokens in PostgreSQL; of a token there is its MAC alone."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final
from uuid import UUID, uuid4

from sqlalchemy import Row, Select, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.domain.admin import (
    Actor,
    AdminRole,
    AdminToken,
    AdminTokenDraft,
    AdminTokenRecord,
    AuditEntry,
)
from gateway.domain.page import Page, PageRequest
from gateway.store.audit_chain import AuditChain
from gateway.store.database import Database
from gateway.store.keyset import Keyset
from gateway.store.organisations import hold_tenant
from gateway.store.tables import admin_tokens, tenants

_ORDER: Final = Keyset((admin_tokens.c.created_at, admin_tokens.c.id))


class SqlAdminTokens:
    """Implement `AdminTokenStore`."""

    def __init__(self, database: Database, audit: AuditChain) -> None:
        self._database = database
        self._audit = audit

    async def find(self, kid: str) -> AdminTokenRecord | None:
        async with self._database.platform() as connection:
            query = described_tokens().where(admin_tokens.c.kid == kid)
            row = (await connection.execute(query)).one_or_none()
        return None if row is None else AdminTokenRecord(token_of(row), row.pepper_id, row.mac)

    async def page(self, request: PageRequest) -> Page[AdminToken]:
        async with self._database.platform() as connection:
            return await _ORDER.page(connection, described_tokens(), request, token_of)

    async def add(self, actor: Actor, organisation_id: UUID, draft: AdminTokenDraft) -> AdminToken:
        async with self._database.platform() as connection:
            if draft.tenant_id is not None:
                await hold_tenant(connection, draft.tenant_id)
            return await insert_admin_token(connection, self._audit, actor, organisation_id, draft)

    async def revoke(
        self, actor: Actor, organisation_id: UUID, token: UUID | str
    ) -> AdminToken | None:
        named = admin_tokens.c.id if isinstance(token, UUID) else admin_tokens.c.kid
        query = described_tokens().where(named == token)
        async with self._database.platform() as connection:
            locked = query.with_for_update(of=admin_tokens)
            row = (await connection.execute(locked)).one_or_none()
            if row is None or row.revoked_at is not None:
                return None if row is None else token_of(row)
            before = token_of(row)
            await connection.execute(
                update(admin_tokens)
                .where(admin_tokens.c.id == before.id)
                .values(revoked_at=func.now())
            )
            after = token_of((await connection.execute(query)).one())
            await _audit(
                connection, self._audit, actor, "token.revoke", organisation_id, before, after
            )
        return after


async def insert_admin_token(
    connection: AsyncConnection,
    audit: AuditChain,
    actor: Actor,
    organisation_id: UUID,
    draft: AdminTokenDraft,
) -> AdminToken:
    """Insert a token in the caller's transaction, and say so in the audit log."""
    values = asdict(draft) | {"id": uuid4(), "role": draft.role.value}
    await connection.execute(insert(admin_tokens).values(values))
    query = described_tokens().where(admin_tokens.c.kid == draft.kid)
    token = token_of((await connection.execute(query)).one())
    await _audit(connection, audit, actor, "token.create", organisation_id, None, token)
    return token


def described_tokens() -> Select[*tuple[Any, ...]]:
    """Select what `token_of` reads."""
    return select(*admin_tokens.c, tenants.c.name.label("tenant")).join_from(
        admin_tokens, tenants, admin_tokens.c.tenant_id == tenants.c.id, isouter=True
    )


def token_of(row: Row[*tuple[Any, ...]]) -> AdminToken:
    """Read a token from a row of `described_tokens`."""
    return AdminToken(
        id=row.id,
        kid=row.kid,
        name=row.name,
        role=AdminRole(row.role),
        created_at=row.created_at,
        tenant_id=row.tenant_id,
        tenant=row.tenant,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
    )


async def _audit(
    connection: AsyncConnection,
    audit: AuditChain,
    actor: Actor,
    action: str,
    organisation_id: UUID,
    before: AdminToken | None,
    after: AdminToken,
) -> None:
    entry = token_entry(action, organisation_id, before, after)
    await audit.append(connection, actor, entry)


def token_entry(
    action: str, organisation_id: UUID, before: AdminToken | None, after: AdminToken
) -> AuditEntry:
    """Describe a change of a token."""
    return AuditEntry(
        action=action,
        object_kind="token",
        object_id=str(after.id),
        organisation_id=organisation_id,
        tenant_id=after.tenant_id,
        before=None if before is None else _public(before),
        after=_public(after),
    )


def _public(token: AdminToken) -> dict[str, Any]:
    return {
        "kid": token.kid,
        "name": token.name,
        "role": token.role.value,
        "tenant": token.tenant,
        "expires_at": None if token.expires_at is None else token.expires_at.isoformat(),
        "is_revoked": token.revoked_at is not None,
    }
