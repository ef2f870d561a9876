"""Stored responses in PostgreSQL.

A chain is read by one statement, from its end to its beginning, a look-up by the primary key each.
What follows the bounds of a tenant reads an index alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Row, delete, insert, literal, select, text

from gateway.domain.stored_response import SealedResponse
from gateway.store.database import Database
from gateway.store.pools import Purpose
from gateway.store.tables import responses, tenants

_ROW: Final = responses.c
_NUM_TRIMMED: Final = 500
_COLUMNS: Final = (
    _ROW.id,
    _ROW.tenant_id,
    _ROW.previous_id,
    _ROW.depth,
    _ROW.chain_bytes,
    _ROW.sent,
    _ROW.answer,
)
# The oldest beyond either bound.
RESPONSES_ABOVE: Final = text(
    """
    WITH counted AS MATERIALIZED (
        SELECT id, sum(num_bytes) OVER newer AS with_newer_bytes, count(*) OVER newer AS with_newer
        FROM responses WHERE tenant_id = :tenant_id
        WINDOW newer AS (ORDER BY created_at DESC, id DESC)
    ), above AS MATERIALIZED (
        SELECT id FROM counted WHERE with_newer_bytes > :max_bytes OR with_newer > :max_rows
        LIMIT :num_rows
    )
    DELETE FROM responses USING above WHERE responses.id = above.id
    """
)


class SqlResponses:
    """Implement `ResponseStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def save(self, response: SealedResponse) -> bool:
        values = {
            "id": response.id,
            "previous_id": response.previous_id,
            "depth": response.depth,
            "chain_bytes": response.chain_bytes,
            "num_bytes": response.num_bytes,
            "sent": response.sent,
            "answer": response.answer,
        }
        # Nobody could ever delete one of a tenant that is gone.
        living = select(
            tenants.c.id, *(literal(value, _ROW[name].type) for name, value in values.items())
        ).where(tenants.c.id == response.tenant_id, tenants.c.archived_at.is_(None))
        statement = insert(responses).from_select(["tenant_id", *values], living)
        async with self._database.tenant(response.tenant_id, Purpose.LEDGER) as connection:
            return (await connection.execute(statement)).rowcount == 1

    async def get(self, tenant_id: UUID, response_id: UUID) -> SealedResponse | None:
        query = select(*_COLUMNS).where(_ROW.tenant_id == tenant_id, _ROW.id == response_id)
        async with self._database.tenant(tenant_id, Purpose.LEDGER) as connection:
            row = (await connection.execute(query)).one_or_none()
        return None if row is None else _response(row)

    async def chain(
        self, tenant_id: UUID, response_id: UUID, limit: int
    ) -> Sequence[SealedResponse]:
        mine = _ROW.tenant_id == tenant_id
        walked = (
            select(_ROW.id, _ROW.previous_id, literal(1).label("back"))
            .where(mine, _ROW.id == response_id)
            .cte("walked", recursive=True)
        )
        walked = walked.union_all(
            select(_ROW.id, _ROW.previous_id, walked.c.back + 1).where(
                mine, _ROW.id == walked.c.previous_id, walked.c.back < limit
            )
        )
        query = (
            select(*_COLUMNS)
            .join(walked, walked.c.id == _ROW.id)
            .where(mine)
            .order_by(walked.c.back.desc())
        )
        async with self._database.tenant(tenant_id, Purpose.LEDGER) as connection:
            return [_response(row) for row in await connection.execute(query)]

    async def delete(self, tenant_id: UUID, response_id: UUID) -> bool:
        statement = delete(responses).where(_ROW.tenant_id == tenant_id, _ROW.id == response_id)
        async with self._database.tenant(tenant_id, Purpose.LEDGER) as connection:
            return (await connection.execute(statement)).rowcount == 1

    async def trim(self, tenant_id: UUID, *, max_rows: int, max_bytes: int) -> int:
        given = {"tenant_id": tenant_id, "max_rows": max_rows, "max_bytes": max_bytes}
        num_deleted = 0
        while True:
            async with self._database.tenant(tenant_id, Purpose.LEDGER) as connection:
                done = await connection.execute(RESPONSES_ABOVE, given | {"num_rows": _NUM_TRIMMED})
            num_deleted += done.rowcount
            if done.rowcount < _NUM_TRIMMED:
                return num_deleted


def _response(row: Row[*tuple[Any, ...]]) -> SealedResponse:
    return SealedResponse(
        row.id,
        row.tenant_id,
        row.previous_id,
        row.depth,
        row.chain_bytes,
        bytes(row.sent),
        bytes(row.answer),
    )
