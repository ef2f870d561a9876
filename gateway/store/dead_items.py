"""Items that killed their workers, in PostgreSQL: listed, counted, and put back into the queue.

What `batch_queue` took for one is pending and never due. Requeued it is due at once, with its
retries before it again; its deaths stay, so that the next worker that dies of it is the last.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final
from uuid import UUID

from sqlalchemy import ColumnElement, Row, func, literal_column, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.domain.admin import Actor, AuditEntry
from gateway.domain.batch import DeadItem
from gateway.domain.page import Page, PageRequest
from gateway.store.audit_chain import AuditChain
from gateway.store.batch_tables import batch_items, batches
from gateway.store.database import Database
from gateway.store.keyset import Keyset
from gateway.store.pools import Purpose
from gateway.store.tables import tenants

_ITEM: Final = batch_items.c
_ORDER: Final = Keyset((_ITEM.batch_id, _ITEM.line))
# As the partial index has it, which holds no others.
_IS_DEAD: Final = (_ITEM.state == literal_column("'pending'"), _ITEM.dead_at.is_not(None))


class SqlDeadItems:
    """Implement `DeadItemStore`."""

    def __init__(self, database: Database, audit: AuditChain) -> None:
        self._database = database
        self._audit = audit

    async def page(
        self,
        organisation_id: UUID,
        request: PageRequest,
        *,
        tenant_id: UUID | None = None,
        batch_id: UUID | None = None,
    ) -> Page[DeadItem]:
        query = (
            select(
                *(_ITEM.batch_id, _ITEM.line, _ITEM.custom_id, _ITEM.num_deaths, _ITEM.dead_at),
                tenants.c.name.label("tenant"),
            )
            .join_from(batch_items, tenants, tenants.c.id == _ITEM.tenant_id)
            .where(*_IS_DEAD, tenants.c.organisation_id == organisation_id)
        )
        if tenant_id is not None:
            query = query.where(_ITEM.tenant_id == tenant_id)
        if batch_id is not None:
            query = query.where(_ITEM.batch_id == batch_id)
        async with self._database.platform(Purpose.REPORTS) as connection:
            return await _ORDER.page(connection, query, request, _item_of)

    async def requeue(
        self,
        actor: Actor,
        organisation_id: UUID,
        batch_id: UUID,
        lines: Collection[int] | None,
        *,
        limit: int,
    ) -> Sequence[int] | None:
        async with self._database.platform() as connection:
            owner = (
                select(batches.c.tenant_id)
                .join_from(batches, tenants, tenants.c.id == batches.c.tenant_id)
                .where(batches.c.id == batch_id, tenants.c.organisation_id == organisation_id)
            )
            tenant_id = await connection.scalar(owner)
            if tenant_id is None:
                return None
            which = [*_IS_DEAD, _ITEM.batch_id == batch_id]
            if lines is not None:
                which.append(_ITEM.line.in_(lines))
            requeued = await _requeue(connection, batch_id, which, limit)
            if requeued:
                entry = AuditEntry(
                    action="batch.requeue",
                    object_kind="batch",
                    object_id=str(batch_id),
                    organisation_id=organisation_id,
                    tenant_id=tenant_id,
                    after={"lines": requeued},
                )
                await self._audit.append(connection, actor, entry)
        return requeued

    async def count(self) -> int:
        query = select(func.count()).select_from(batch_items).where(*_IS_DEAD)
        async with self._database.platform(Purpose.REPORTS) as connection:
            return await connection.scalar(query) or 0


async def _requeue(
    connection: AsyncConnection, batch_id: UUID, which: Sequence[ColumnElement[bool]], limit: int
) -> list[int]:
    held = select(_ITEM.line).where(*which).order_by(_ITEM.line).limit(limit).with_for_update()
    lines = sorted(await connection.scalars(held))
    due = (
        update(batch_items)
        .where(_ITEM.batch_id == batch_id, _ITEM.line.in_(lines))
        .values(run_after=func.clock_timestamp(), dead_at=None, num_attempts=0)
    )
    if lines:
        await connection.execute(due)
    return lines


def _item_of(row: Row[*tuple[Any, ...]]) -> DeadItem:
    return DeadItem(
        tenant=row.tenant,
        batch_id=row.batch_id,
        line=row.line,
        custom_id=row.custom_id,
        num_deaths=row.num_deaths,
        since=row.dead_at,
    )
