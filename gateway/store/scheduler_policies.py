"""What operators set of the schedulers, in PostgreSQL: a row, and versions that are compared."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from sqlalchemy import Insert, Row, Update, func, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.domain.admin import Actor, AuditEntry
from gateway.domain.scheduler_policy import OperatorPolicy
from gateway.errors import VersionConflict
from gateway.store.audit_chain import AuditChain
from gateway.store.database import Database
from gateway.store.tables import scheduler_policies


class SqlSchedulerPolicies:
    """Implement `SchedulerPolicyStore`."""

    def __init__(self, database: Database, audit: AuditChain) -> None:
        self._database = database
        self._audit = audit

    async def get(self, organisation_id: UUID) -> OperatorPolicy:
        async with self._database.platform() as connection:
            return await _get(connection, organisation_id)

    async def put(
        self, actor: Actor, entry: AuditEntry, policy: OperatorPolicy, *, replaces: int
    ) -> OperatorPolicy:
        # Who comes second waits for the first one's row, and then finds another version there.
        statement = _write(entry.organisation_id, policy, replaces)
        async with self._database.platform() as connection:
            written = await connection.execute(statement.returning(*scheduler_policies.c))
            row = written.one_or_none()
            if row is None:
                raise VersionConflict(await _get(connection, entry.organisation_id))
            await self._audit.append(connection, actor, entry)
        return _policy_of(row)


def _write(organisation_id: UUID, policy: OperatorPolicy, replaces: int) -> Insert | Update:
    table = scheduler_policies
    values = {
        "version": replaces + 1,
        "every": dict(policy.every),
        "models": dict(policy.models),
        "changed_at": func.now(),
    }
    if replaces == 0:
        first = upsert(table).values(organisation_id=organisation_id, **values)
        return first.on_conflict_do_nothing(index_elements=[table.c.organisation_id])
    return (
        update(table)
        .where(table.c.organisation_id == organisation_id, table.c.version == replaces)
        .values(**values)
    )


async def _get(connection: AsyncConnection, organisation_id: UUID) -> OperatorPolicy:
    query = select(*scheduler_policies.c).where(
        scheduler_policies.c.organisation_id == organisation_id
    )
    row = (await connection.execute(query)).one_or_none()
    return OperatorPolicy() if row is None else _policy_of(row)


def _policy_of(row: Row[*tuple[Any, ...]]) -> OperatorPolicy:
    return OperatorPolicy(row.version, row.every, row.models, row.changed_at)
