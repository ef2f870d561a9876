"""Archiving tenants in PostgreSQL: keys and tokens end, what they did stays, what was said goes.

A row of the ledger or the audit log belongs to a tenant's id, which therefore stays. Its name is
given back: an archived tenant is called `acme~` and eight digits of its id, which no tenant can be
named, so that another `acme` may be made, and a report of the past tells the two apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from sqlalchemy import delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.domain import Tenant
from gateway.domain.admin import Actor, AuditEntry
from gateway.domain.batch import BatchState
from gateway.domain.tenant_archive import ArchivedTenant, archived_name
from gateway.errors import VersionConflict
from gateway.store.admin_tokens import described_tokens, token_entry, token_of
from gateway.store.audit_chain import AuditChain
from gateway.store.batch_rows import cancelling, delete_items
from gateway.store.batch_tables import batches
from gateway.store.database import Database
from gateway.store.key_rows import api_key, described_keys, key_entry
from gateway.store.organisations import described_tenants, tenant_entry, tenant_of
from gateway.store.tables import admin_tokens, keys, responses, tenants

# Keys that are read, ended and read again in a row.
_TOGETHER: Final = 100


class SqlTenantArchive:
    """Implement `TenantArchiveStore`."""

    def __init__(self, database: Database, audit: AuditChain) -> None:
        self._database = database
        self._audit = audit

    async def archive(
        self, actor: Actor, organisation_id: UUID, name: str, *, version: int | None = None
    ) -> ArchivedTenant | None:
        mine = tenants.c.organisation_id == organisation_id
        query = described_tenants().where(mine, tenants.c.name == name)
        async with self._database.platform() as connection:
            # Who gives it a key or a token holds its row too, and looks again.
            locked = query.with_for_update(of=tenants, key_share=True)
            row = (await connection.execute(locked)).one_or_none()
            if row is None:
                return None
            before = tenant_of(row)
            if version not in (None, before.version):
                raise VersionConflict(before)
            of_keys, entries_of_keys = await _end_keys(connection, before)
            of_tokens, entries_of_tokens = await _end_tokens(connection, before)
            await connection.execute(delete(responses).where(responses.c.tenant_id == before.id))
            await _stop_batches(connection, before)
            after = await _put_away(connection, before)
            entries = [*entries_of_keys, *entries_of_tokens]
            entries.append(tenant_entry("tenant.delete", before, after))
            await self._audit.append_all(connection, actor, entries)
        return ArchivedTenant(after, of_keys, of_tokens)


async def _end_keys(
    connection: AsyncConnection, tenant: Tenant
) -> tuple[Sequence[str], list[AuditEntry]]:
    """End the keys that live, some at a time: a tenant may have made any number of them."""
    kids: list[str] = []
    entries: list[AuditEntry] = []
    mine = described_keys().where(keys.c.tenant_id == tenant.id).order_by(keys.c.id)
    live = mine.where(keys.c.revoked_at.is_(None)).limit(_TOGETHER)
    while True:
        rows = await connection.execute(live.with_for_update(of=keys, key_share=True))
        before = {key.id: key for key in map(api_key, rows)}
        if not before:
            return kids, entries
        these = keys.c.id.in_(list(before))
        ended = update(keys).where(these)
        await connection.execute(ended.values(revoked_at=func.now(), version=keys.c.version + 1))
        for key in map(api_key, await connection.execute(mine.where(these))):
            kids.append(key.kid)
            entries.append(key_entry("key.revoke", tenant.organisation_id, before[key.id], key))


async def _end_tokens(
    connection: AsyncConnection, tenant: Tenant
) -> tuple[Sequence[str], list[AuditEntry]]:
    query = described_tokens().where(admin_tokens.c.tenant_id == tenant.id)
    live = query.where(admin_tokens.c.revoked_at.is_(None)).order_by(admin_tokens.c.id)
    rows = await connection.execute(live.with_for_update(of=admin_tokens))
    before = {token.id: token for token in map(token_of, rows)}
    ended = update(admin_tokens).where(admin_tokens.c.id.in_(list(before)))
    await connection.execute(ended.values(revoked_at=func.now()))
    found = map(token_of, await connection.execute(query))
    after = [token for token in found if token.id in before]
    entries = [
        token_entry("token.revoke", tenant.organisation_id, before[token.id], token)
        for token in after
    ]
    return [token.kid for token in after], entries


async def _stop_batches(connection: AsyncConnection, tenant: Tenant) -> None:
    """Cancel what has not ended: nobody is left to do it, or to pay for it.

    Files, those that it ends with too, are swept from then on (`SqlFiles.sweep`).
    """
    stopped = cancelling(batches.c.tenant_id == tenant.id)
    # In the order in which results are summed on them.
    open_ones = select(batches.c.id).where(
        batches.c.tenant_id == tenant.id, batches.c.ended_at.is_(None)
    )
    await connection.execute(open_ones.order_by(batches.c.id).with_for_update(key_share=True))
    rows = await connection.execute(stopped.returning(batches.c.id, batches.c.state))
    await delete_items(connection, [row.id for row in rows if row.state == BatchState.CANCELLED])


async def _put_away(connection: AsyncConnection, tenant: Tenant) -> Tenant:
    """Give back its name, its plan and its place in an org, all of which others may want."""
    changed = update(tenants).where(tenants.c.id == tenant.id)
    await connection.execute(
        changed.values(
            name=archived_name(tenant.name, tenant.id),
            archived_at=func.now(),
            plan_id=None,
            org_id=None,
            version=tenants.c.version + 1,
        )
    )
    query = described_tenants().where(tenants.c.id == tenant.id)
    return tenant_of((await connection.execute(query)).one())
