"""Organisations and their tenants in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Row, insert, select
from sqlalchemy.exc import IntegrityError

from gateway.domain import Organisation, Tenant
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

    async def add(self, organisation_id: UUID, name: str, weight: float) -> Tenant:
        statement = (
            insert(tenants)
            .values(id=uuid4(), organisation_id=organisation_id, name=name, weight=weight)
            .returning(*tenants.c)
        )
        try:
            async with self._database.platform() as connection:
                return tenant_of((await connection.execute(statement)).one())
        except IntegrityError as exc:
            raise Conflict("There is a tenant of that name already.", param="name") from exc

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
    )
