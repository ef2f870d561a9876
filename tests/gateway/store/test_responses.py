"""Stored responses on a real PostgreSQL."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import func, select, update

from gateway.domain.admin import Actor, AdminRole
from gateway.domain.stored_response import SealedResponse
from gateway.store import Store
from gateway.store.retention import Retention
from gateway.store.tables import responses, tenants

pytestmark = pytest.mark.anyio


def tenant_of(store: Store, number: int = 0) -> UUID:
    assert store.first_start is not None
    return store.first_start.keys[number].key.tenant_id


def response(tenant_id: UUID, before: SealedResponse | None = None, **more: Any) -> SealedResponse:
    given: dict[str, Any] = {
        "id": uuid4(),
        "tenant_id": tenant_id,
        "previous_id": None if before is None else before.id,
        "depth": 1 if before is None else before.depth + 1,
        "chain_bytes": 8 + (0 if before is None else before.chain_bytes),
        "sent": b"sent",
        "answer": b"said",
    }
    return SealedResponse(**given | more)


def retention(store: Store, **changes: int) -> Retention:
    given = {"event_days": 62, "answer_hours": 24, "answer_bytes": 1000, "batch_days": 90}
    given |= {"response_days": 30, "responses": 100, "response_bytes": 1 << 20, "num_rows": 2}
    return Retention(store.database, **given | changes)


async def kept(store: Store, tenant_id: UUID) -> set[UUID]:
    async with store.database.platform() as connection:
        query = select(responses.c.id).where(responses.c.tenant_id == tenant_id)
        return set(await connection.scalars(query))


async def aged(store: Store, row: SealedResponse, days: float) -> None:
    async with store.database.platform() as connection:
        await connection.execute(
            update(responses)
            .where(responses.c.id == row.id)
            .values(created_at=func.now() - timedelta(days=days))
        )


async def test_a_tenant_finds_its_own(store: Store) -> None:
    """Another's is not there: not to be read, gone on from or deleted."""
    mine, other = tenant_of(store, 0), tenant_of(store, 1)
    row = response(mine)
    assert await store.responses.save(row)
    assert await store.responses.get(mine, row.id) == row
    assert await store.responses.get(other, row.id) is None
    assert await store.responses.chain(other, row.id, 10) == []
    assert not await store.responses.delete(other, row.id)
    assert await store.responses.delete(mine, row.id)
    assert await store.responses.get(mine, row.id) is None
    assert not await store.responses.delete(mine, row.id)


async def test_row_level_security_holds_without_the_where(store: Store) -> None:
    """A transaction of one tenant sees none of another's, and can write none."""
    mine, other = tenant_of(store, 0), tenant_of(store, 1)
    await store.responses.save(response(mine))
    async with store.database.tenant(other) as connection:
        assert await connection.scalar(select(func.count()).select_from(responses)) == 0
    async with store.database.tenant(mine) as connection:
        assert await connection.scalar(select(func.count()).select_from(responses)) == 1


async def test_a_chain_of_a_thousand_is_read_in_its_order(store: Store) -> None:
    """By one statement; it ends where one is gone, and at another tenant's."""
    mine = tenant_of(store)
    rows: list[SealedResponse] = []
    for _ in range(1000):
        rows.append(response(mine, rows[-1] if rows else None))
    async with store.database.tenant(mine) as connection:
        values = [
            {
                name: getattr(row, name)
                for name in ("id", "tenant_id", "previous_id", "depth", "chain_bytes")
            }
            | {"sent": row.sent, "answer": row.answer, "num_bytes": row.num_bytes}
            for row in rows
        ]
        await connection.execute(responses.insert(), values)
    assert await store.responses.chain(mine, rows[-1].id, 1000) == rows
    assert await store.responses.chain(mine, rows[-1].id, 10) == rows[-10:]
    await store.responses.delete(mine, rows[500].id)
    assert await store.responses.chain(mine, rows[-1].id, 1000) == rows[501:]


async def test_the_oldest_go_above_a_tenants_bounds(store: Store) -> None:
    """By number and by bytes, down to the bound; another tenant's stay."""
    mine, other = tenant_of(store, 0), tenant_of(store, 1)
    rows = [response(mine) for _ in range(6)]
    for age, row in enumerate(rows):
        await store.responses.save(row)
        await aged(store, row, age)
    await store.responses.save(response(other))
    assert await store.responses.trim(mine, max_rows=5, max_bytes=1000) == 1
    assert await store.responses.trim(mine, max_rows=5, max_bytes=24) == 2
    assert await store.responses.trim(mine, max_rows=5, max_bytes=24) == 0
    assert await kept(store, mine) == {row.id for row in rows[:3]}
    assert await retention(store, responses=1).responses() == 2
    assert await kept(store, mine) == {rows[0].id}
    assert len(await kept(store, other)) == 1


async def test_old_ones_go(store: Store) -> None:
    """After their days, in batches."""
    mine = tenant_of(store)
    rows = [response(mine) for _ in range(4)]
    for row in rows:
        await store.responses.save(row)
    for row in rows[:3]:
        await aged(store, row, 31)
    assert await retention(store).responses() == 3
    assert await kept(store, mine) == {rows[3].id}


async def test_those_of_an_archived_tenant_go(store: Store) -> None:
    """With it; nothing is stored of it any more, and what had been under way goes too."""
    mine = tenant_of(store)
    await store.responses.save(response(mine))
    async with store.database.platform() as connection:
        row = (await connection.execute(select(tenants).where(tenants.c.id == mine))).one()
    actor = Actor("owner", AdminRole.OWNER)
    assert await store.tenant_archive.archive(actor, row.organisation_id, row.name) is not None
    assert await kept(store, mine) == set()
    late = response(mine)
    assert not await store.responses.save(late)
    async with store.database.tenant(mine) as connection:
        values = {"id": late.id, "tenant_id": mine, "depth": 1, "chain_bytes": 8, "num_bytes": 8}
        await connection.execute(responses.insert(), values | {"sent": b"", "answer": b""})
    assert await retention(store).responses() == 1
    assert await kept(store, mine) == set()
