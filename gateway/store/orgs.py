"""Orgs, whose tenants share the machine's service as one, in PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID, uuid4

from sqlalchemy import Row, Select, delete, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.domain import Org
from gateway.domain.admin import Actor, AuditEntry
from gateway.domain.page import Page, PageRequest
from gateway.errors import Conflict, VersionConflict
from gateway.store.audit_chain import AuditChain
from gateway.store.database import Database
from gateway.store.keyset import Keyset
from gateway.store.tables import orgs

_ORDER: Final = Keyset((orgs.c.name,))


class SqlOrgs:
    """Implement `OrgStore`."""

    def __init__(self, database: Database, audit: AuditChain) -> None:
        self._database = database
        self._audit = audit

    async def add(self, actor: Actor, organisation_id: UUID, name: str, weight: float) -> Org:
        row = {"id": uuid4(), "organisation_id": organisation_id, "name": name, "weight": weight}
        try:
            async with self._database.platform() as connection:
                inserted = insert(orgs).values(row).returning(*orgs.c)
                org = _org_of((await connection.execute(inserted)).one())
                await self._note(connection, actor, "org.create", org, None, org)
        except IntegrityError as exc:
            raise Conflict("There is an org of that name already.", param="name") from exc
        return org

    async def page(self, organisation_id: UUID, request: PageRequest) -> Page[Org]:
        query = select(*orgs.c).where(orgs.c.organisation_id == organisation_id)
        async with self._database.platform() as connection:
            return await _ORDER.page(connection, query, request, _org_of)

    async def by_name(self, organisation_id: UUID, name: str) -> Org | None:
        async with self._database.platform() as connection:
            row = (await connection.execute(_named(organisation_id, name))).one_or_none()
        return None if row is None else _org_of(row)

    async def update(
        self,
        actor: Actor,
        organisation_id: UUID,
        name: str,
        changes: Mapping[str, object],
        *,
        version: int | None = None,
    ) -> Org | None:
        async with self._database.platform() as connection:
            before = await _locked(connection, organisation_id, name, version)
            if before is None or before.weight == changes.get("weight", before.weight):
                return before
            changed = update(orgs).where(orgs.c.id == before.id)
            changed = changed.values(**changes, version=orgs.c.version + 1)
            after = _org_of((await connection.execute(changed.returning(*orgs.c))).one())
            await self._note(connection, actor, "org.update", after, before, after)
        return after

    async def remove(
        self, actor: Actor, organisation_id: UUID, name: str, *, version: int | None = None
    ) -> Org | None:
        try:
            async with self._database.platform() as connection:
                org = await _locked(connection, organisation_id, name, version)
                if org is None:
                    return None
                await connection.execute(delete(orgs).where(orgs.c.id == org.id))
                await self._note(connection, actor, "org.delete", org, org, None)
        except IntegrityError as exc:
            raise Conflict("Tenants belong to this org; take them out of it first.") from exc
        return org

    async def _note(
        self,
        connection: AsyncConnection,
        actor: Actor,
        action: str,
        org: Org,
        before: Org | None,
        after: Org | None,
    ) -> None:
        entry = AuditEntry(
            action=action,
            object_kind="org",
            object_id=str(org.id),
            organisation_id=org.organisation_id,
            before=None if before is None else _public(before),
            after=None if after is None else _public(after),
        )
        await self._audit.append(connection, actor, entry)


def _named(organisation_id: UUID, name: str) -> Select[*tuple[Any, ...]]:
    return select(*orgs.c).where(orgs.c.organisation_id == organisation_id, orgs.c.name == name)


async def _locked(
    connection: AsyncConnection, organisation_id: UUID, name: str, version: int | None
) -> Org | None:
    """Find an org and hold it. Raises: `VersionConflict`."""
    row = (await connection.execute(_named(organisation_id, name).with_for_update())).one_or_none()
    if row is None:
        return None
    org = _org_of(row)
    if version not in (None, org.version):
        raise VersionConflict(org)
    return org


def _org_of(row: Row[*tuple[Any, ...]]) -> Org:
    return Org(
        id=row.id,
        organisation_id=row.organisation_id,
        name=row.name,
        weight=row.weight,
        created_at=row.created_at,
        version=row.version,
    )


def _public(org: Org) -> dict[str, Any]:
    return {"name": org.name, "weight": org.weight}
