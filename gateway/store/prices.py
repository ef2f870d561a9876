"""Prices in PostgreSQL: versions that are added to, never changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final
from uuid import UUID, uuid4

from sqlalchemy import Row, Select, func, insert, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.domain.admin import Actor, AuditEntry
from gateway.domain.page import Page, PageRequest
from gateway.domain.price import Price, PriceDraft
from gateway.store.audit_chain import AuditChain
from gateway.store.database import Database
from gateway.store.keyset import Keyset
from gateway.store.pools import Purpose
from gateway.store.tables import prices

_ORDER: Final = Keyset((prices.c.model, prices.c.version))
_LOCK: Final = 7_308_325_614_571_844_468  # one beside that of the migrations


class SqlPrices:
    """Implement `PriceStore`."""

    def __init__(self, database: Database, audit: AuditChain) -> None:
        self._database = database
        self._audit = audit

    async def add(self, actor: Actor, organisation_id: UUID, draft: PriceDraft) -> Price:
        async with self._database.platform() as connection:
            return await insert_price(connection, self._audit, actor, organisation_id, draft)

    async def current(self) -> Sequence[Price]:
        async with self._database.platform(Purpose.LEDGER) as connection:
            return [price_of(row) for row in await connection.execute(current_prices())]

    async def page(self, request: PageRequest, *, every_version: bool = False) -> Page[Price]:
        query = select(*prices.c) if every_version else current_prices()
        async with self._database.platform() as connection:
            return await _ORDER.page(connection, query, request, price_of)

    async def find(self, model: str) -> Price | None:
        query = current_prices().where(prices.c.model == model)
        async with self._database.platform() as connection:
            row = (await connection.execute(query)).one_or_none()
        return None if row is None else price_of(row)

    async def version(self, price_id: UUID) -> Price | None:
        query = select(*prices.c).where(prices.c.id == price_id)
        async with self._database.platform(Purpose.LEDGER) as connection:
            row = (await connection.execute(query)).one_or_none()
        return None if row is None else price_of(row)


async def insert_price(
    connection: AsyncConnection,
    audit: AuditChain,
    actor: Actor,
    organisation_id: UUID,
    draft: PriceDraft,
) -> Price:
    """Add the next version of a price in the caller's transaction, with its audit record."""
    await lock_prices(connection)
    query = current_prices().where(prices.c.model == draft.model)
    row = (await connection.execute(query)).one_or_none()
    before = None if row is None else price_of(row)
    statement = insert(prices).values(
        id=uuid4(), version=1 if before is None else before.version + 1, **asdict(draft)
    )
    added = price_of((await connection.execute(statement.returning(*prices.c))).one())
    entry = price_entry(organisation_id, before, added)
    await audit.append(connection, actor, entry)
    return added


async def lock_prices(connection: AsyncConnection) -> None:
    """Be the only one who adds prices: two that add a version would draw the same number."""
    await connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))


def price_entry(organisation_id: UUID, before: Price | None, added: Price) -> AuditEntry:
    """Describe a new version of a price."""
    return AuditEntry(
        action="price.create",
        object_kind="price",
        object_id=added.model,
        organisation_id=organisation_id,
        before=None if before is None else _public(before),
        after=_public(added),
    )


def current_prices() -> Select[*tuple[Any, ...]]:
    """Select the newest version of every price."""
    newest = select(prices.c.model, func.max(prices.c.version)).group_by(prices.c.model)
    return select(*prices.c).where(tuple_(prices.c.model, prices.c.version).in_(newest))


def price_of(row: Row[*tuple[Any, ...]]) -> Price:
    """Read a price from its row."""
    return Price(**row._mapping)


def _public(price: Price) -> dict[str, Any]:
    fields = asdict(price)
    del fields["id"], fields["effective_at"]
    return fields
