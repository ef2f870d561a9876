"""Organisations and their tenants in PostgreSQL."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final
from uuid import UUID, uuid4

from sqlalchemy import ColumnElement, Row, Select, func, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.domain import (
    Ceilings,
    Organisation,
    Tenant,
    TenantChoices,
    TenantFilter,
    TenantSlo,
    Tier,
)
from gateway.domain.admin import Actor, AuditEntry
from gateway.domain.ceilings import NO_CEILINGS
from gateway.domain.page import Page, PageRequest
from gateway.domain.quota import Scope, ScopeKind
from gateway.domain.quota_settings import QuotaHolder
from gateway.errors import Conflict, NotFound, VersionConflict
from gateway.store.audit_chain import AuditChain
from gateway.store.database import Database
from gateway.store.keyset import Keyset
from gateway.store.quota_settings import note_new_plan
from gateway.store.tables import organisations, orgs, plans, tenants

_ORDER: Final = Keyset((tenants.c.name,))
# More than there are.
_ALL: Final = 1 << 31
ALL_TENANTS: Final = TenantFilter()


class SqlOrganisations:
    """Implement `OrganisationStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # The oldest: once there is one it stays the same, and every page asks for it several times.
        self._default: Organisation | None = None

    async def default(self) -> Organisation:
        if self._default is not None:
            return self._default
        query = (
            select(organisations.c.id, organisations.c.name)
            .order_by(organisations.c.created_at)
            .limit(1)
        )
        async with self._database.platform() as connection:
            row = (await connection.execute(query)).one_or_none()
        if row is None:
            raise NotFound("There is no organisation.")
        self._default = Organisation(id=row.id, name=row.name)
        return self._default


class SqlTenants:
    """Implement `TenantStore`."""

    def __init__(self, database: Database, audit: AuditChain) -> None:
        self._database = database
        self._audit = audit

    async def add(
        self,
        actor: Actor,
        organisation_id: UUID,
        name: str,
        weight: float,
        slo: TenantSlo,
        plan: str | None = None,
        ceilings: Ceilings = NO_CEILINGS,
        org: str | None = None,
    ) -> Tenant:
        try:
            async with self._database.platform() as connection:
                plan_id = await _plan_id(connection, organisation_id, plan)
                org_id = await _org_id(connection, organisation_id, org)
                return await insert_tenant(
                    connection,
                    self._audit,
                    actor,
                    organisation_id,
                    name,
                    weight,
                    slo,
                    plan_id,
                    ceilings,
                    org_id,
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
            if "org" in values:
                del values["org"]
                org = changes["org"]
                assert org is None or isinstance(org, str), "checked above"
                values["org_id"] = await _org_id(connection, organisation_id, org)
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
            await _audit(connection, self._audit, actor, "tenant.update", before, after)
        return after

    async def list(self, organisation_id: UUID) -> Sequence[Tenant]:
        query = _living(organisation_id)
        async with self._database.platform() as connection:
            page = await _ORDER.page(connection, query, PageRequest(_ALL), tenant_of)
        return page.data

    async def named(self, organisation_id: UUID, ids: Collection[UUID]) -> Sequence[Tenant]:
        query = described_tenants().where(
            tenants.c.organisation_id == organisation_id, tenants.c.id.in_(ids)
        )
        async with self._database.platform() as connection:
            return [tenant_of(row) for row in await connection.execute(query)]

    async def page(
        self,
        organisation_id: UUID,
        tenant_id: UUID | None,
        request: PageRequest,
        chosen: TenantFilter = ALL_TENANTS,
    ) -> Page[Tenant]:
        query = _living(organisation_id).where(*_chosen(chosen))
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

    async def choices(self, organisation_id: UUID, limit: int) -> TenantChoices:
        found = []
        async with self._database.platform() as connection:
            for table in (plans.c, orgs.c):
                query = select(table.name).where(table.organisation_id == organisation_id)
                names = await connection.scalars(query.order_by(table.name).limit(limit))
                found.append(names.all())
        return TenantChoices(*found)


async def insert_tenant(
    connection: AsyncConnection,
    audit: AuditChain,
    actor: Actor,
    organisation_id: UUID,
    name: str,
    weight: float,
    slo: TenantSlo,
    plan_id: UUID | None = None,
    ceilings: Ceilings = NO_CEILINGS,
    org_id: UUID | None = None,
) -> Tenant:
    """Insert a tenant in the caller's transaction, and say so in the audit log."""
    await connection.execute(
        insert(tenants).values(
            id=uuid4(),
            organisation_id=organisation_id,
            name=name,
            weight=weight,
            plan_id=plan_id,
            org_id=org_id,
            **asdict(slo),
            **asdict(ceilings),
        )
    )
    tenant = tenant_of((await connection.execute(_named(organisation_id, name))).one())
    await _audit(connection, audit, actor, "tenant.create", None, tenant)
    return tenant


def tenant_of(row: Row[*tuple[Any, ...]]) -> Tenant:
    """Read a tenant from a row that has the columns of its table, its plan's name and its org's."""
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
        org_id=row.org_id,
        org=row.org,
        archived_at=row.archived_at,
        trace_prompts=row.trace_prompts,
    )


def slo_of(row: Row[*tuple[Any, ...]]) -> TenantSlo:
    """Read a tenant's promises from a row that has the columns of its table."""
    return TenantSlo(ttft_ms=row.ttft_ms, tpot_ms=row.tpot_ms, max_gap_ms=row.max_gap_ms)


def described_tenants() -> Select[*tuple[Any, ...]]:
    """Select what `tenant_of` reads."""
    return (
        select(*tenants.c, plans.c.name.label("plan"), orgs.c.name.label("org"))
        .join_from(tenants, plans, tenants.c.plan_id == plans.c.id, isouter=True)
        .join(orgs, tenants.c.org_id == orgs.c.id, isouter=True)
    )


async def hold_tenant(connection: AsyncConnection, tenant_id: UUID) -> int | None:
    """Keep a tenant from being changed by others; return how many keys it may have.

    Raises: `NotFound`: it is archived.
    """
    query = select(tenants.c.max_keys, tenants.c.archived_at).where(tenants.c.id == tenant_id)
    row = (await connection.execute(query.with_for_update(key_share=True))).one()
    if row.archived_at is not None:
        raise NotFound("There is no tenant of that name.", param="tenant")
    max_keys: int | None = row.max_keys
    return max_keys


def _living(organisation_id: UUID) -> Select[*tuple[Any, ...]]:
    return described_tenants().where(
        tenants.c.organisation_id == organisation_id, tenants.c.archived_at.is_(None)
    )


def _chosen(chosen: TenantFilter) -> Iterator[ColumnElement[bool]]:
    if chosen.text is not None:
        yield tenants.c.name.contains(chosen.text, autoescape=True)
    for column, key, name in (
        (plans.c.name, tenants.c.plan_id, chosen.plan),
        (orgs.c.name, tenants.c.org_id, chosen.org),
    ):
        if name is not None:
            yield column == name if name else key.is_(None)
    if chosen.is_promised is not None:
        promises = func.num_nonnulls(tenants.c.ttft_ms, tenants.c.tpot_ms, tenants.c.max_gap_ms)
        yield promises > 0 if chosen.is_promised else promises == 0


def _named(organisation_id: UUID, name: str) -> Select[*tuple[Any, ...]]:
    return described_tenants().where(
        tenants.c.organisation_id == organisation_id, tenants.c.name == name
    )


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


async def _org_id(
    connection: AsyncConnection, organisation_id: UUID, org: str | None
) -> UUID | None:
    if org is None:
        return None
    query = select(orgs.c.id).where(orgs.c.organisation_id == organisation_id, orgs.c.name == org)
    org_id: UUID | None = await connection.scalar(query.with_for_update(read=True, key_share=True))
    if org_id is None:
        raise NotFound("There is no org of that name.", param="org")
    return org_id


async def _audit(
    connection: AsyncConnection,
    audit: AuditChain,
    actor: Actor,
    action: str,
    before: Tenant | None,
    after: Tenant,
) -> None:
    entry = tenant_entry(action, before, after)
    await audit.append(connection, actor, entry)


def tenant_entry(action: str, before: Tenant | None, after: Tenant) -> AuditEntry:
    """Describe a change of a tenant."""
    return AuditEntry(
        action=action,
        object_kind="tenant",
        object_id=str(after.id),
        organisation_id=after.organisation_id,
        tenant_id=after.id,
        before=None if before is None else _public(before),
        after=_public(after),
    )


def _public(tenant: Tenant) -> dict[str, Any]:
    return {
        "name": tenant.name,
        "weight": tenant.weight,
        **asdict(tenant.slo),
        "plan": tenant.plan,
        "org": tenant.org,
        **asdict(tenant.ceilings),
        "trace_prompts": tenant.trace_prompts,
    }
