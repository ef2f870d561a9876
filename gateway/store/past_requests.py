"""Requests of the last hours from the ledger's rows, in pieces that hold no event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

from sqlalchemy import select

from gateway.domain.past_request import PastRequest
from gateway.store.database import Database
from gateway.store.pools import Purpose
from gateway.store.tables import usage_events

_PIECE_ROWS: Final = 500
_ROW: Final = usage_events.c
_COLUMNS: Final = tuple(_ROW[name] for name in PastRequest._fields)


class SqlPastRequests:
    """Implement `PastRequestStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def since(
        self,
        organisation_id: UUID,
        since: datetime,
        *,
        limit: int,
        tenant_id: UUID | None = None,
        model: str | None = None,
    ) -> Sequence[PastRequest]:
        query = (
            select(*_COLUMNS)
            .where(_ROW.organisation_id == organisation_id, _ROW.at >= since)
            .order_by(_ROW.at.desc())
            .limit(limit)
        )
        if tenant_id is not None:
            query = query.where(_ROW.tenant_id == tenant_id)
        if model is not None:
            query = query.where(_ROW.model == model)
        found: list[PastRequest] = []
        async with self._database.platform(Purpose.REPORTS) as connection:
            result = await connection.stream(query)
            async for rows in result.partitions(_PIECE_ROWS):
                found += [PastRequest(*row) for row in rows]
                await asyncio.sleep(0)
        found.reverse()
        return found
