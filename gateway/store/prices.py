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
from gateway.store.audit import append
from gateway.store.database import Database
from gateway.store.keyset import Keyset
from gateway.store.pools import Purpose
from gateway.store.tables import prices

_ORDER: Final = Keyset((prices.c.model, prices.c.version))
_LOCK: Final = 7_308_325_614_571_844_468  # one beside that of the migrations


class SqlPrices:
    """Implement `PriceStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, actor: Actor, organisation_id: UUID, draft: PriceDraft) -> Price:
        async with self._database.platform() as connection:
            return await insert_price(connection, actor, organisation_id, draft)

    async def current(self) -> Sequence[Price]:
        async with self._database.platform(Purpose.LEDGER) as connection:
            return [_price_of(row) for row in await connection.execute(_current())]

    async def page(self, request: PageRequest, *, every_version: bool = False) -> Page[Price]:
        query = select(*prices.c) if every_version else _current()
        async with self._database.platform() as connection:
            return await _ORDER.page(connection, query, request, _price_of)

    async def find(self, model: str) -> Price | None:
        query = _current().where(prices.c.model == model)
        async with self._database.platform() as connection:
            row = (await connection.execute(query)).one_or_none()
        return None if row is None else _price_of(row)


async def insert_price(
    connection: AsyncConnection, actor: Actor, organisation_id: UUID, draft: PriceDraft
) -> Price:
    """Add the next version of a price in the caller's transaction, with its audit record."""
    # Two that add a version at once would draw the same number.
    await connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
    query = _current().where(prices.c.model == draft.model)
    row = (await connection.execute(query)).one_or_none()
    before = None if row is None else _price_of(row)
    statement = insert(prices).values(
        id=uuid4(), version=1 if before is None else before.version + 1, **asdict(draft)
    )
    added = _price_of((await connection.execute(statement.returning(*prices.c))).one())
    entry = AuditEntry(
        action="price.create",
        object_kind="price",
        object_id=draft.model,
        organisation_id=organisation_id,
        before=None if before is None else _public(before),
        after=_public(added),
    )
    await append(connection, actor, entry)
    return added


def _current() -> Select[*tuple[Any, ...]]:
    newest = select(prices.c.model, func.max(prices.c.version)).group_by(prices.c.model)
    return select(*prices.c).where(tuple_(prices.c.model, prices.c.version).in_(newest))


def _price_of(row: Row[*tuple[Any, ...]]) -> Price:
    return Price(**row._mapping)


def _public(price: Price) -> dict[str, Any]:
    fields = asdict(price)
    del fields["id"], fields["effective_at"]
    return fields
