"""Organisations and their tenants in PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Row, insert, select, update
from sqlalchemy.exc import IntegrityError

from gateway.domain import Organisation, Tenant, TenantSlo
from gateway.errors import Conflict, NotFound
from gateway.store.database import Database
from gateway.store.tables import organisations, tenants


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

    async def add(self, organisation_id: UUID, name: str, weight: float, slo: TenantSlo) -> Tenant:
        statement = (
            insert(tenants)
            .values(
                id=uuid4(),
                organisation_id=organisation_id,
                name=name,
                weight=weight,
                **asdict(slo),
            )
            .returning(*tenants.c)
        )
        try:
            async with self._database.platform() as connection:
                return tenant_of((await connection.execute(statement)).one())
        except IntegrityError as exc:
            raise Conflict("There is a tenant of that name already.", param="name") from exc

    async def update(
        self, organisation_id: UUID, name: str, changes: Mapping[str, float | None]
    ) -> Tenant | None:
        statement = (
            update(tenants)
            .where(tenants.c.organisation_id == organisation_id, tenants.c.name == name)
            .values(**changes)
            .returning(*tenants.c)
        )
        async with self._database.platform() as connection:
            row = (await connection.execute(statement)).one_or_none()
        return None if row is None else tenant_of(row)

    async def list(self, organisation_id: UUID) -> Sequence[Tenant]:
        query = (
            select(tenants)
            .where(tenants.c.organisation_id == organisation_id)
            .order_by(tenants.c.name)
        )
        async with self._database.platform() as connection:
            return [tenant_of(row) for row in await connection.execute(query)]

    async def by_name(self, organisation_id: UUID, name: str) -> Tenant | None:
        query = select(tenants).where(
            tenants.c.organisation_id == organisation_id, tenants.c.name == name
        )
        async with self._database.platform() as connection:
            row = (await connection.execute(query)).one_or_none()
        return None if row is None else tenant_of(row)


def tenant_of(row: Row[*tuple[Any, ...]]) -> Tenant:
    """Read a tenant from a row of its table."""
    return Tenant(
        id=row.id,
        organisation_id=row.organisation_id,
        name=row.name,
        weight=row.weight,
        created_at=row.created_at,
        slo=slo_of(row),
    )


def slo_of(row: Row[*tuple[Any, ...]]) -> TenantSlo:
    """Read a tenant's promises from a row that has the columns of its table."""
    return TenantSlo(ttft_ms=row.ttft_ms, tpot_ms=row.tpot_ms, max_gap_ms=row.max_gap_ms)
