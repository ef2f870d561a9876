"""Batches in PostgreSQL: what tenants ask for, and how each of them stands.

Each of these is one small transaction, however large the batch is: to cancel is to say so, and what
that drops is dropped in slices by whoever looks after batches (`batch_steps`). Time is the
database's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import msgspec
from sqlalchemy import (
    ColumnElement,
    and_,
    bindparam,
    delete,
    func,
    null,
    or_,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.domain.batch import (
    Batch,
    BatchDraft,
    BatchState,
    ErrorGroup,
    LineError,
    NamedBatch,
    PausedFor,
)
from gateway.domain.files import LEAST_BYTES
from gateway.domain.page import Page, PageRequest
from gateway.errors import FileNotFound, TenantLimited
from gateway.store.batch_rows import (
    COLUMNS,
    NUM_DEAD,
    batch_of,
    cancelling,
    delete_items,
    stored_errors,
)
from gateway.store.batch_tables import batches, files
from gateway.store.database import Database
from gateway.store.keyset import Keyset
from gateway.store.pools import Purpose
from gateway.store.tables import tenants

_encoder: Final = msgspec.json.Encoder()
_COLUMNS: Final = (batches.c.created_at, batches.c.id)
_ORDERS: Final = {False: Keyset(_COLUMNS, descending=True), True: Keyset(_COLUMNS)}
_ROW: Final = batches.c
# As for files: what tenants ask for is theirs to wait for.
_ASKED: Final = Purpose.REPORTS


# Locked in one order, as results are summed on them in it.
_PAUSE: Final = text(
    """
    WITH held AS MATERIALIZED (
        SELECT batches.id, given.errors
        FROM jsonb_to_recordset(CAST(:paused AS jsonb)) AS given(id uuid, errors jsonb)
        JOIN batches USING (id)
        WHERE state = 'in_progress' ORDER BY batches.id FOR NO KEY UPDATE OF batches
    )
    UPDATE batches SET paused_for = :why, errors = held.errors FROM held WHERE batches.id = held.id
    """
)
_FULL_TENANTS: Final = text(
    """
    SELECT answers.tenant_id FROM (
        SELECT batches.tenant_id, coalesce(sum(batch_bytes.num_bytes), 0) AS num_bytes
        FROM batches LEFT JOIN batch_bytes ON batch_id = batches.id
        WHERE ended_at IS NULL GROUP BY batches.tenant_id
    ) AS answers
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(greatest(size_bytes, :least_bytes)), 0) AS num_bytes FROM files
        WHERE files.tenant_id = answers.tenant_id AND is_ready
    ) AS stored
    WHERE answers.num_bytes + stored.num_bytes >= :max_bytes
    """
)
# A part of all that are open, small enough to be read in a few milliseconds; without what their
# tenants alone look at, of which each may have ten kilobytes.
_OPEN_ROWS: Final = 100
_OPEN: Final = (
    select(
        *(null().label(one.name) if one.name in ("metadata", "errors") else one for one in COLUMNS)
    )
    .where(
        _ROW.id > bindparam("after"),
        _ROW.ended_at.is_(None),
        _ROW.state == BatchState.IN_PROGRESS,
        _ROW.expires_at > func.clock_timestamp(),
        _ROW.num_done + _ROW.num_failed + _ROW.num_dropped < _ROW.num_items,
    )
    .order_by(_ROW.id)
    .limit(_OPEN_ROWS)
)
# What failed has its line of the error file: an error of its own, or that of an answer. It may
# quote what was sent, and JSONB takes no NUL.
_ERROR_GROUPS: Final = text(
    """
    SELECT code, min(message), count(*), min(line) FROM (
        SELECT line,
            coalesce(
                said #>> '{error,code}', said #>> '{response,body,error,code}',
                said #>> '{response,status_code}', 'unknown'
            ) AS code,
            left(coalesce(
                said #>> '{error,message}', said #>> '{response,body,error,message}', ''
            ), 200) AS message
        FROM (
            SELECT line,
                replace(convert_from(body, 'UTF8'), '\\u0000', '\\ufffd')::jsonb AS said
            FROM batch_results
            WHERE batch_id = :batch_id AND is_error ORDER BY line LIMIT :limit
        ) AS failed
    ) AS causes GROUP BY code ORDER BY 3 DESC, 1 LIMIT 20
    """
)


class SqlBatches:
    """Implement `BatchStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, draft: BatchDraft, *, max_batches: int | None = None) -> Batch:
        async with self._database.tenant(draft.tenant_id, _ASKED) as connection:
            if draft.idempotency_key is not None:
                made = await _find(connection, _keyed(draft))
                if made is not None:
                    return made
            await _hold_input(connection, draft)
            if max_batches is not None:
                await _check_number(connection, draft.tenant_id, max_batches)
            row = (await connection.execute(_insertion(draft))).one_or_none()
            if row is not None:
                return batch_of(row)
            # Another with this key came first, and has committed: the insertion waited for it.
            made = await _find(connection, _keyed(draft))
            assert made is not None, "batches are deleted long after they ended"
            return made

    async def get(self, tenant_id: UUID, batch_id: UUID) -> Batch | None:
        async with self._database.tenant(tenant_id, _ASKED) as connection:
            return await _find(connection, _named(tenant_id, batch_id))

    async def page(
        self,
        tenant_id: UUID,
        request: PageRequest,
        *,
        endpoint: str | None = None,
        is_ascending: bool = False,
    ) -> Page[Batch]:
        query = select(*COLUMNS, NUM_DEAD).where(_ROW.tenant_id == tenant_id)
        if endpoint is not None:
            query = query.where(_ROW.endpoint == endpoint)
        async with self._database.tenant(tenant_id, _ASKED) as connection:
            return await _ORDERS[is_ascending].page(connection, query, request, batch_of)

    async def page_of_all(
        self,
        organisation_id: UUID,
        request: PageRequest,
        *,
        tenant_id: UUID | None = None,
        is_open: bool | None = None,
    ) -> Page[NamedBatch]:
        query = (
            select(*COLUMNS, NUM_DEAD, tenants.c.name.label("tenant"))
            .join_from(batches, tenants, tenants.c.id == _ROW.tenant_id)
            .where(tenants.c.organisation_id == organisation_id)
        )
        if tenant_id is not None:
            query = query.where(_ROW.tenant_id == tenant_id)
        if is_open is not None:
            query = query.where(_ROW.ended_at.is_(None) if is_open else _ROW.ended_at.is_not(None))
        async with self._database.platform(_ASKED) as connection:
            return await _ORDERS[False].page(
                connection, query, request, lambda row: NamedBatch(row.tenant, batch_of(row))
            )

    async def get_of_all(self, organisation_id: UUID, batch_id: UUID) -> NamedBatch | None:
        query = (
            select(*COLUMNS, NUM_DEAD, tenants.c.name.label("tenant"))
            .join_from(batches, tenants, tenants.c.id == _ROW.tenant_id)
            .where(tenants.c.organisation_id == organisation_id, _ROW.id == batch_id)
        )
        async with self._database.platform(_ASKED) as connection:
            row = (await connection.execute(query)).one_or_none()
        return None if row is None else NamedBatch(row.tenant, batch_of(row))

    async def error_groups(self, batch_id: UUID, *, limit: int) -> Sequence[ErrorGroup]:
        given = {"batch_id": batch_id, "limit": limit}
        async with self._database.platform(_ASKED) as connection:
            return [ErrorGroup(*row) for row in await connection.execute(_ERROR_GROUPS, given)]

    async def delete(self, tenant_id: UUID, batch_id: UUID) -> bool:
        statement = delete(batches).where(_named(tenant_id, batch_id), _ROW.ended_at.is_not(None))
        async with self._database.platform(_ASKED) as connection:
            return (await connection.execute(statement)).rowcount == 1

    async def cancel(self, tenant_id: UUID, batch_id: UUID) -> Batch | None:
        statement = cancelling(_named(tenant_id, batch_id)).returning(*COLUMNS)
        async with self._database.platform(_ASKED) as connection:
            row = (await connection.execute(statement)).one_or_none()
            if row is None:
                return await _find(connection, _named(tenant_id, batch_id))
            if row.state == BatchState.CANCELLED:
                await delete_items(connection, [batch_id])
            return batch_of(row)

    async def pause(self, paused: Mapping[UUID, str | None], why: PausedFor | None) -> None:
        told = [
            {"id": id_, "errors": stored_errors([LineError(why, because)])}
            if why is not None and because is not None
            else {"id": id_}
            for id_, because in paused.items()
        ]
        given = {"why": why, "paused": _encoder.encode(told).decode()}
        async with self._database.platform(Purpose.LEDGER) as connection:
            await connection.execute(_PAUSE, given)

    async def full_tenants(self, max_stored_bytes: int) -> Collection[UUID]:
        given = {"max_bytes": max_stored_bytes, "least_bytes": LEAST_BYTES}
        async with self._database.platform(_ASKED) as connection:
            return (await connection.scalars(_FULL_TENANTS, given)).all()

    async def open_batches(self) -> Sequence[Batch]:
        found: list[Batch] = []
        after = UUID(int=0)
        while True:
            async with self._database.platform(Purpose.LEDGER) as connection:
                rows = (await connection.execute(_OPEN, {"after": after})).all()
            found += map(batch_of, rows)
            if len(rows) < _OPEN_ROWS:
                return found
            after = rows[-1].id


def _named(tenant_id: UUID, batch_id: UUID) -> ColumnElement[bool]:
    return and_(_ROW.tenant_id == tenant_id, _ROW.id == batch_id)


def _keyed(draft: BatchDraft) -> ColumnElement[bool]:
    return and_(_ROW.tenant_id == draft.tenant_id, _ROW.idempotency_key == draft.idempotency_key)


async def _find(connection: AsyncConnection, which: ColumnElement[bool]) -> Batch | None:
    row = (await connection.execute(select(*COLUMNS, NUM_DEAD).where(which))).one_or_none()
    return None if row is None else batch_of(row)


async def _hold_input(connection: AsyncConnection, draft: BatchDraft) -> None:
    """See that the input is there, and that nobody removes it before the batch is."""
    query = (
        select(files.c.id)
        .where(
            files.c.id == draft.input_file_id,
            files.c.tenant_id == draft.tenant_id,
            files.c.is_ready,
            or_(files.c.expires_at.is_(None), files.c.expires_at > func.now()),
        )
        .with_for_update(read=True, key_share=True)
    )
    if await connection.scalar(query) is None:
        raise FileNotFound(param="input_file_id")


async def _check_number(connection: AsyncConnection, tenant_id: UUID, max_batches: int) -> None:
    query = (
        select(func.count())
        .select_from(batches)
        .where(_ROW.tenant_id == tenant_id, _ROW.ended_at.is_(None))
    )
    if (await connection.scalar(query) or 0) >= max_batches:
        raise TenantLimited(
            f"This tenant has {max_batches} batches that have not ended. Wait for one to end, or "
            "cancel one.",
            code="too_many_batches",
        )


def _insertion(draft: BatchDraft) -> Any:  # an insertion that returns COLUMNS
    return (
        insert(batches)
        .values(
            id=draft.id,
            tenant_id=draft.tenant_id,
            key_id=draft.key_id,
            endpoint=draft.endpoint,
            input_file_id=draft.input_file_id,
            idempotency_key=draft.idempotency_key,
            completion_window_s=draft.completion_window_s,
            output_expires_after_s=draft.output_expires_after_s,
            metadata=None if draft.metadata is None else dict(draft.metadata),
            expires_at=func.now() + timedelta(seconds=draft.completion_window_s),
        )
        .on_conflict_do_nothing(
            index_elements=[_ROW.tenant_id, _ROW.idempotency_key],
            index_where=_ROW.idempotency_key.is_not(None),
        )
        .returning(*COLUMNS)
    )
