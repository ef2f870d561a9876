"""The way of batches from one state to the next, in PostgreSQL.

What takes long for a large batch (items added, dropped, deleted) goes through a gate of `MAX_LONG`
at a time, so that it never takes more of a gateway's connections to the ledger; each is a slice, or
the deletion of what a batch had: when it has ended it is counts and files. Who may do what and
when is said with the statements, in `batch_statements`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final
from uuid import UUID

from sqlalchemy import TextClause, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.domain.batch import (
    NO_BOUNDS,
    Batch,
    BatchBounds,
    BatchState,
    BatchStep,
    ItemResult,
    ItemRun,
    LineError,
    NewItem,
)
from gateway.domain.files import WholeFile
from gateway.errors import EnqueuedTokensExceeded
from gateway.store import batch_statements as statements
from gateway.store.batch_queue import CHANNEL
from gateway.store.batch_rows import batch_of, delete_items, stored_errors
from gateway.store.batch_tables import batches
from gateway.store.database import Database
from gateway.store.files import insert_file
from gateway.store.pools import Purpose

MAX_LONG: Final = 2
# What runs of a batch that is cancelled or past its window may go on for.
GRACE_S: Final = 600.0
_ROW: Final = batches.c
_PART_ROWS, _PART_BYTES = 500, 1 << 20
# What is dropped of a batch in one transaction, and of how many before the next look.
SLICE_ITEMS: Final = 5_000
_SLICE_BATCHES: Final = 8
# Whose turns are remembered: of more, some come sooner again than they should.
_MAX_SERVED: Final = 1_000


class SqlBatchSteps:
    """Implement `BatchSteps`."""

    def __init__(
        self, database: Database, *, grace_s: float = GRACE_S, slice_items: int = SLICE_ITEMS
    ) -> None:
        self._database = database
        self._slice_items = slice_items
        self._grace_s = grace_s
        self._gate = asyncio.Semaphore(MAX_LONG)
        self._to_validate = _Turns(statements.TO_VALIDATE)
        self._to_finalize = _Turns(statements.TO_FINALIZE)

    async def due(self) -> Collection[BatchStep]:
        async with self._database.platform(Purpose.LEDGER) as connection:
            found = (await connection.execute(statements.DUE)).one()._mapping
            return [step for step in BatchStep if found[step]]

    async def to_validate(
        self, limit: int, *, lease_s: float, left: Collection[UUID] = ()
    ) -> Sequence[Batch]:
        return await self._taken(self._to_validate, limit, lease_s, left=list(left))

    async def hold(self, batch_id: UUID, *, lease_s: float) -> bool:
        async with self._database.platform(Purpose.LEDGER) as connection:
            given = {"batch_id": batch_id, "lease_s": lease_s}
            return (await connection.execute(statements.HOLD, given)).rowcount == 1

    async def add_items(self, batch_id: UUID, items: Sequence[NewItem]) -> None:
        columns = {
            "lines": [item.line for item in items],
            "custom_ids": [item.custom_id for item in items],
            "places": [item.place for item in items],
            "offsets": [item.offset_bytes for item in items],
            "sizes": [item.size_bytes for item in items],
            "tokens": [item.enqueued_tokens for item in items],
        }
        named = {"batch_id": batch_id}
        async with self._long() as connection:
            tenant_id = await connection.scalar(statements.STILL_VALIDATING, named)
            if tenant_id is not None:
                given = {**named, "tenant_id": tenant_id, **columns}
                await connection.execute(statements.ADD_ITEMS, given)

    async def start(
        self,
        batch_id: UUID,
        price_ids: Mapping[str, UUID],
        *,
        models: Sequence[str] = (),
        bounds: BatchBounds = NO_BOUNDS,
    ) -> bool:
        named = {"batch_id": batch_id}
        async with self._long() as connection:
            tenant_id = await connection.scalar(statements.LEAVE_VALIDATING, named)
            if tenant_id is None:
                return False
            own = (await connection.execute(statements.OF_ITEMS, named)).one()
            of_tenant = {"tenant_id": tenant_id}
            await connection.execute(statements.ONE_START_A_TENANT, of_tenant)
            waiting = (await connection.execute(statements.WAITING, of_tenant)).one()
            _check_room(bounds, waiting.num_items + own.num_items, waiting.tokens + own.tokens)
            values = {
                "state": BatchState.IN_PROGRESS,
                "in_progress_at": func.clock_timestamp(),
                "lease_until": None,
                "num_items": own.num_items,
                "enqueued_tokens": own.tokens,
                "price_ids": {model: str(id_) for model, id_ in price_ids.items()},
                "models": list(models),
            }
            await connection.execute(update(batches).where(_ROW.id == batch_id).values(**values))
            # Heard once this commits.
            await connection.execute(select(func.pg_notify(CHANNEL, "")))
            return True

    async def fail(self, batch_id: UUID, errors: Sequence[LineError]) -> None:
        statement = (
            update(batches)
            .where(_ROW.id == batch_id, _ROW.state == BatchState.VALIDATING)
            .values(
                state=BatchState.FAILED,
                errors=stored_errors(errors),
                ended_at=func.clock_timestamp(),
                lease_until=None,
            )
        )
        async with self._long() as connection:
            if (await connection.execute(statement)).rowcount:
                await delete_items(connection, [batch_id])

    async def drop(self) -> int:
        given = {"limit": _SLICE_BATCHES, "grace_s": self._grace_s}
        async with self._database.platform(Purpose.LEDGER) as connection:
            stopped = (await connection.execute(statements.TO_DROP, given)).all()
        num_dropped = await self._expire_unvalidated()
        for batch in stopped:
            named = {"batch_id": batch.id, "fate": batch.fate, "limit": self._slice_items}
            async with self._long() as connection:
                num_dropped += await connection.scalar(statements.DROP_PENDING, named) or 0
                if batch.is_late:
                    num_dropped += await connection.scalar(statements.DROP_RUNNING, named) or 0
        return num_dropped

    async def to_finalize(self, limit: int, *, lease_s: float) -> Sequence[Batch]:
        return await self._taken(self._to_finalize, limit, lease_s)

    async def results(
        self, batch_id: UUID, *, is_error: bool
    ) -> AsyncGenerator[Sequence[ItemResult], None]:
        more = {"is_error": is_error, "max_bytes": _PART_BYTES}
        async for part in self._parts(statements.RESULTS, batch_id, more):
            yield [
                ItemResult(ItemRun(batch_id, row.line, row.generation), row.is_error, row.body)
                for row in part
            ]

    async def dropped(
        self, batch_id: UUID
    ) -> AsyncGenerator[Sequence[tuple[int, str, bool]], None]:
        async for part in self._parts(statements.DROPPED, batch_id, {}):
            yield [(row.line, row.custom_id, row.is_expired) for row in part]

    async def finish(
        self, batch_id: UUID, *, output: WholeFile | None, error: WholeFile | None
    ) -> bool:
        given = {
            "batch_id": batch_id,
            "output_file_id": output.draft.id if output else None,
            "error_file_id": error.draft.id if error else None,
        }
        async with self._long() as connection:
            if not (await connection.execute(statements.FINISH, given)).rowcount:
                return False
            for file in (output, error):
                if file is not None:
                    await insert_file(connection, file)
            await delete_items(connection, [batch_id])
            return True

    async def _taken(
        self, turns: _Turns, limit: int, lease_s: float, **more: object
    ) -> Sequence[Batch]:
        given = {"limit": limit, "lease_s": lease_s, "served": list(turns.served), **more}
        async with self._database.platform(Purpose.LEDGER) as connection:
            rows = await connection.execute(turns.statement, given)
            found = [batch_of(row) for row in rows]
        for batch in found:
            turns.take(batch.tenant_id)
        return found

    async def _expire_unvalidated(self) -> int:
        async with self._long() as connection:
            ids = (await connection.scalars(statements.NEVER_VALIDATED)).all()
            await delete_items(connection, ids)
            return len(ids)

    async def _parts(
        self, statement: TextClause, batch_id: UUID, more: Mapping[str, object]
    ) -> AsyncGenerator[Sequence[Any], None]:
        """Return rows by line, each part in a transaction that ends before it is looked at."""
        after = 0
        while True:
            given = {"batch_id": batch_id, "after": after, "limit": _PART_ROWS, **more}
            async with self._database.platform(Purpose.LEDGER) as connection:
                part = (await connection.execute(statement, given)).all()
            if not part:
                return
            yield part
            after = part[-1].line

    @asynccontextmanager
    async def _long(self) -> AsyncIterator[AsyncConnection]:
        async with self._gate, self._database.platform(Purpose.LEDGER) as connection:
            yield connection


class _Turns:
    """Remember whose batches a statement has handed out here, the last one last."""

    def __init__(self, statement: TextClause) -> None:
        self.statement = statement
        self.served: dict[UUID, None] = {}

    def take(self, tenant_id: UUID) -> None:
        self.served.pop(tenant_id, None)
        self.served[tenant_id] = None
        if len(self.served) > _MAX_SERVED:
            del self.served[next(iter(self.served))]


def _check_room(bounds: BatchBounds, num_items: int, tokens: int) -> None:
    """Raise `EnqueuedTokensExceeded` where a tenant would wait with more than it may."""
    if bounds.max_enqueued_tokens is not None and tokens > bounds.max_enqueued_tokens:
        raise EnqueuedTokensExceeded(
            f"Enqueued token limit reached: with this batch, {tokens} tokens of this tenant would "
            f"wait, and {bounds.max_enqueued_tokens} may. Submit it again once others have ended."
        )
    if bounds.max_items is not None and num_items > bounds.max_items:
        raise EnqueuedTokensExceeded(
            f"With this batch, {num_items} requests of this tenant would wait, and "
            f"{bounds.max_items} may. Submit it again once others have ended."
        )
