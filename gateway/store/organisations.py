"""Organisations and their tenants in PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final
from uuid import UUID, uuid4

from sqlalchemy import Row, Select, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.domain import Ceilings, Organisation, Tenant, TenantSlo, Tier
from gateway.domain.admin import Actor, AuditEntry
from gateway.domain.ceilings import NO_CEILINGS
from gateway.domain.page import Page, PageRequest
from gateway.domain.quota import Scope, ScopeKind
from gateway.domain.quota_settings import QuotaHolder
from gateway.errors import Conflict, NotFound, VersionConflict
from gateway.store.audit import append
from gateway.store.database import Database
from gateway.store.keyset import Keyset
from gateway.store.quota_settings import note_new_plan
from gateway.store.tables import organisations, plans, tenants

_ORDER: Final = Keyset((tenants.c.name,))


class SqlOrganisations:
    """Implement `OrganisationStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def default(self) -> Organisation:
        query = (
            select(organisations.c.id, organisations.c.name)
            .order_by(organisations.c.created_at)
            .limit(1)
        )
        async with self._database.platform() as connection:
            row = (await connection.execute(query)).one_or_none()
        if row is None:
            raise NotFound("There is no organisation.")
        return Organisation(id=row.id, name=row.name)


class SqlTenants:
    """Implement `TenantStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(
        self,
        actor: Actor,
        organisation_id: UUID,
        name: str,
        weight: float,
        slo: TenantSlo,
        plan: str | None = None,
        ceilings: Ceilings = NO_CEILINGS,
    ) -> Tenant:
        try:
            async with self._database.platform() as connection:
                plan_id = await _plan_id(connection, organisation_id, plan)
                return await insert_tenant(
                    connection, actor, organisation_id, name, weight, slo, plan_id, ceilings
                )
        except IntegrityError as exc:
            raise Conflict("There is a tenant of that name already.", param="name") from exc

    async def update(
        self,
        actor: Actor,
        organisation_id: UUID,
        name: str,
        changes: Mapping[str, object],
        *,
        version: int | None = None,
    ) -> Tenant | None:
        query = _named(organisation_id, name)
        async with self._database.platform() as connection:
            locked = (
                await connection.execute(query.with_for_update(of=tenants, key_share=True))
            ).one_or_none()
            if locked is None:
                return None
            before = tenant_of(locked)
            if version not in (None, before.version):
                raise VersionConflict(before)
            shown = _public(before)
            if all(shown[field] == value for field, value in changes.items()):
                return before
            values: dict[str, object] = dict(changes)
            if "plan" in values:
                del values["plan"]
                plan = changes["plan"]
                assert plan is None or isinstance(plan, str), "checked above"
                values["plan_id"] = await _plan_id(connection, organisation_id, plan)
            await connection.execute(
                update(tenants)
                .where(tenants.c.id == before.id)
                .values(**values, version=tenants.c.version + 1)
            )
            if "plan_id" in values:
                scope = Scope(ScopeKind.TENANT, before.id)
                await note_new_plan(
                    connection, QuotaHolder(scope, before.name, organisation_id, before.id)
                )
            after = tenant_of((await connection.execute(query)).one())
            await _audit(connection, actor, "tenant.update", before, after)
        return after

    async def list(self, organisation_id: UUID) -> Sequence[Tenant]:
        query = (
            _described()
            .where(tenants.c.organisation_id == organisation_id)
            .order_by(tenants.c.name)
        )
        async with self._database.platform() as connection:
            return [tenant_of(row) for row in await connection.execute(query)]

    async def page(
        self, organisation_id: UUID, tenant_id: UUID | None, request: PageRequest
    ) -> Page[Tenant]:
        query = _described().where(tenants.c.organisation_id == organisation_id)
        if tenant_id is None:
            async with self._database.platform() as connection:
                return await _ORDER.page(connection, query, request, tenant_of)
        async with self._database.tenant(tenant_id) as connection:
            query = query.where(tenants.c.id == tenant_id)
            return await _ORDER.page(connection, query, request, tenant_of)

    async def by_name(self, organisation_id: UUID, name: str) -> Tenant | None:
        async with self._database.platform() as connection:
            row = (await connection.execute(_named(organisation_id, name))).one_or_none()
        return None if row is None else tenant_of(row)


async def insert_tenant(
    connection: AsyncConnection,
    actor: Actor,
    organisation_id: UUID,
    name: str,
    weight: float,
    slo: TenantSlo,
    plan_id: UUID | None = None,
    ceilings: Ceilings = NO_CEILINGS,
) -> Tenant:
    """Insert a tenant in the caller's transaction, and say so in the audit log."""
    await connection.execute(
        insert(tenants).values(
            id=uuid4(),
            organisation_id=organisation_id,
            name=name,
            weight=weight,
            plan_id=plan_id,
            **asdict(slo),
            **asdict(ceilings),
        )
    )
    tenant = tenant_of((await connection.execute(_named(organisation_id, name))).one())
    await _audit(connection, actor, "tenant.create", None, tenant)
    return tenant


def tenant_of(row: Row[*tuple[Any, ...]]) -> Tenant:
    """Read a tenant from a row that has the columns of its table and its plan's name."""
    return Tenant(
        id=row.id,
        organisation_id=row.organisation_id,
        name=row.name,
        weight=row.weight,
        created_at=row.created_at,
        slo=slo_of(row),
        plan_id=row.plan_id,
        plan=row.plan,
        version=row.version,
        ceilings=Ceilings(
            max_tier=Tier(row.max_tier),
            models=None if row.models is None else tuple(row.models),
            cidrs=None if row.cidrs is None else tuple(row.cidrs),
            max_keys=row.max_keys,
        ),
    )


def slo_of(row: Row[*tuple[Any, ...]]) -> TenantSlo:
    """Read a tenant's promises from a row that has the columns of its table."""
    return TenantSlo(ttft_ms=row.ttft_ms, tpot_ms=row.tpot_ms, max_gap_ms=row.max_gap_ms)


def _described() -> Select[*tuple[Any, ...]]:
    return select(*tenants.c, plans.c.name.label("plan")).join_from(
        tenants, plans, tenants.c.plan_id == plans.c.id, isouter=True
    )


def _named(organisation_id: UUID, name: str) -> Select[*tuple[Any, ...]]:
    return _described().where(tenants.c.organisation_id == organisation_id, tenants.c.name == name)


async def _plan_id(
    connection: AsyncConnection, organisation_id: UUID, plan: str | None
) -> UUID | None:
    if plan is None:
        return None
    query = select(plans.c.id).where(
        plans.c.organisation_id == organisation_id, plans.c.name == plan
    )
    plan_id: UUID | None = await connection.scalar(query.with_for_update(read=True, key_share=True))
    if plan_id is None:
        raise NotFound("There is no plan of that name.", param="plan")
    return plan_id


async def _audit(
    connection: AsyncConnection, actor: Actor, action: str, before: Tenant | None, after: Tenant
) -> None:
    entry = AuditEntry(
        action=action,
        object_kind="tenant",
        object_id=str(after.id),
        organisation_id=after.organisation_id,
        tenant_id=after.id,
        before=None if before is None else _public(before),
        after=_public(after),
    )
    await append(connection, actor, entry)


def _public(tenant: Tenant) -> dict[str, Any]:
    return {
        "name": tenant.name,
        "weight": tenant.weight,
        **asdict(tenant.slo),
        "plan": tenant.plan,
        **asdict(tenant.ceilings),
    }
