"""Plans in PostgreSQL; their limits lie beside those of every other scope."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final
from uuid import UUID, uuid4

from sqlalchemy import Row, Select, and_, delete, insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.domain.admin import Actor, AuditEntry
from gateway.domain.page import Page, PageRequest
from gateway.domain.plan import Plan
from gateway.domain.quota import Quota, Scope, ScopeKind
from gateway.domain.quota_settings import QuotaHolder, plain_quota
from gateway.errors import Conflict, VersionConflict
from gateway.store.audit_chain import AuditChain
from gateway.store.database import Database
from gateway.store.keyset import Keyset
from gateway.store.quota_rows import quota_of
from gateway.store.quota_settings import advance_quota, lock_quota, write_quota
from gateway.store.tables import plans, quotas

_ORDER: Final = Keyset((plans.c.name,))
_LIMITS: Final = [column for column in quotas.c if column.name in plain_quota(Quota())]


class SqlPlans:
    """Implement `PlanStore`."""

    def __init__(self, database: Database, audit: AuditChain) -> None:
        self._database = database
        self._audit = audit

    async def add(self, actor: Actor, organisation_id: UUID, name: str, quota: Quota) -> Plan:
        plan_id = uuid4()
        row = insert(plans).values(id=plan_id, organisation_id=organisation_id, name=name)
        try:
            async with self._database.platform() as connection:
                await connection.execute(row)
                await write_quota(connection, _holder(plan_id, organisation_id, name), quota)
                plan = await _get(connection, organisation_id, name)
                assert plan is not None, "it was inserted"
                await _audit(connection, self._audit, actor, "plan.create", plan, None, plan)
        except IntegrityError as exc:
            raise Conflict("There is a plan of that name already.", param="name") from exc
        return plan

    async def page(self, organisation_id: UUID, request: PageRequest) -> Page[Plan]:
        query = described_plans().where(plans.c.organisation_id == organisation_id)
        async with self._database.platform() as connection:
            return await _ORDER.page(connection, query, request, plan_of)

    async def by_name(self, organisation_id: UUID, name: str) -> Plan | None:
        async with self._database.platform() as connection:
            return await _get(connection, organisation_id, name)

    async def update(
        self,
        actor: Actor,
        organisation_id: UUID,
        name: str,
        changes: Mapping[str, object],
        *,
        version: int | None = None,
    ) -> Plan | None:
        async with self._database.platform() as connection:
            before = await _locked(connection, organisation_id, name)
            if before is None:
                return None
            if version not in (None, before.version):
                raise VersionConflict(before)
            quota = replace(before.quota, **changes)  # type: ignore[arg-type]  # checked above
            if quota == before.quota:
                return before
            holder = _holder(before.id, organisation_id, name)
            await write_quota(connection, holder, quota)
            await advance_quota(connection, holder)
            after = replace(before, quota=quota, version=before.version + 1)
            await _audit(connection, self._audit, actor, "plan.update", before, before, after)
        return after

    async def remove(
        self, actor: Actor, organisation_id: UUID, name: str, *, version: int | None = None
    ) -> Plan | None:
        try:
            async with self._database.platform() as connection:
                plan = await _locked(connection, organisation_id, name)
                if plan is None:
                    return None
                if version not in (None, plan.version):
                    raise VersionConflict(plan)
                await connection.execute(delete(plans).where(plans.c.id == plan.id))
                await connection.execute(
                    delete(quotas).where(
                        quotas.c.scope_kind == ScopeKind.PLAN.value, quotas.c.scope_id == plan.id
                    )
                )
                await _audit(connection, self._audit, actor, "plan.delete", plan, plan, None)
        except IntegrityError as exc:
            raise Conflict("Tenants are on this plan; move them to another first.") from exc
        return plan


def _holder(plan_id: UUID, organisation_id: UUID, name: str) -> QuotaHolder:
    return QuotaHolder(Scope(ScopeKind.PLAN, plan_id), name, organisation_id)


def described_plans() -> Select[*tuple[Any, ...]]:
    """Select what `plan_of` reads."""
    mine = and_(quotas.c.scope_kind == ScopeKind.PLAN.value, quotas.c.scope_id == plans.c.id)
    return select(*plans.c, *_LIMITS).join_from(plans, quotas, mine, isouter=True)


async def _get(connection: AsyncConnection, organisation_id: UUID, name: str) -> Plan | None:
    query = described_plans().where(
        plans.c.organisation_id == organisation_id, plans.c.name == name
    )
    row = (await connection.execute(query)).one_or_none()
    return None if row is None else plan_of(row)


async def _locked(connection: AsyncConnection, organisation_id: UUID, name: str) -> Plan | None:
    plan = await _get(connection, organisation_id, name)
    if plan is not None:
        await lock_quota(connection, _holder(plan.id, organisation_id, name))
        # Read again: what held the lock may have changed it, or removed it.
        plan = await _get(connection, organisation_id, name)
    return plan


def plan_of(row: Row[*tuple[Any, ...]]) -> Plan:
    """Read a plan from a row that has its limits too."""
    return Plan(
        id=row.id,
        organisation_id=row.organisation_id,
        name=row.name,
        version=row.version,
        created_at=row.created_at,
        quota=quota_of(row),
    )


async def _audit(
    connection: AsyncConnection,
    audit: AuditChain,
    actor: Actor,
    action: str,
    plan: Plan,
    before: Plan | None,
    after: Plan | None,
) -> None:
    entry = plan_entry(action, plan, before, after)
    await audit.append(connection, actor, entry)


def plan_entry(action: str, plan: Plan, before: Plan | None, after: Plan | None) -> AuditEntry:
    """Describe a change of a plan."""
    return AuditEntry(
        action=action,
        object_kind="plan",
        object_id=str(plan.id),
        organisation_id=plan.organisation_id,
        before=None if before is None else _public(before),
        after=None if after is None else _public(after),
    )


def _public(plan: Plan) -> dict[str, Any]:
    return {"name": plan.name, "quota": plain_quota(plan.quota)}
