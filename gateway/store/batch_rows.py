"""A batch as its row has it, for those who read and those who change one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Row,
    Update,
    case,
    delete,
    func,
    literal_column,
    select,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.domain.batch import Batch, BatchDraft, BatchState, LineError, PausedFor
from gateway.store.batch_tables import batch_items, batch_results, batches

# All but who works on it: nobody above the store asks.
COLUMNS: Final = tuple(column for column in batches.c if column.name != "lease_until")


# Beside them where a tenant looks: nobody else asks.
NUM_DEAD: Final = (
    select(func.count())
    .select_from(batch_items)
    .where(
        batch_items.c.batch_id == batches.c.id,
        batch_items.c.state == literal_column("'pending'"),
        batch_items.c.dead_at.is_not(None),
    )
    .correlate(batches)
    .scalar_subquery()
    .label("num_dead")
)


def batch_of(row: Row[*tuple[Any, ...]]) -> Batch:
    """Read a batch from its row."""
    errors = [LineError(**error) for error in row.errors or ()]
    paused_because = None
    if row.state != BatchState.FAILED:
        # What was told of a pause, and may be told no longer.
        if errors and row.paused_for is not None:
            paused_because = errors[0].message
        errors = []
    return Batch(
        draft=BatchDraft(
            id=row.id,
            tenant_id=row.tenant_id,
            key_id=row.key_id,
            endpoint=row.endpoint,
            input_file_id=row.input_file_id,
            completion_window_s=row.completion_window_s,
            metadata=row.metadata,
            output_expires_after_s=row.output_expires_after_s,
            idempotency_key=row.idempotency_key,
        ),
        state=BatchState(row.state),
        paused_for=None if row.paused_for is None else PausedFor(row.paused_for),
        errors=errors,
        price_ids={model: UUID(id_) for model, id_ in row.price_ids.items()},
        output_file_id=row.output_file_id,
        error_file_id=row.error_file_id,
        num_items=row.num_items,
        num_done=row.num_done,
        num_failed=row.num_failed,
        num_dropped=row.num_dropped,
        enqueued_tokens=row.enqueued_tokens,
        input_tokens=row.input_tokens,
        cached_tokens=row.cached_tokens,
        output_tokens=row.output_tokens,
        cost_nano_usd=row.cost_nano_usd,
        full_nano_usd=row.full_nano_usd,
        created_at=row.created_at,
        expires_at=row.expires_at,
        in_progress_at=row.in_progress_at,
        finalizing_at=row.finalizing_at,
        cancelling_at=row.cancelling_at,
        ended_at=row.ended_at,
        models=tuple(row.models),
        num_dead=row._mapping.get("num_dead", 0),
        paused_because=paused_because,
    )


def stored_errors(errors: Sequence[LineError]) -> list[dict[str, object]]:
    """Return errors as their column holds them; PostgreSQL takes no NUL in a text."""
    return [
        {
            "code": error.code,
            "message": error.message.replace("\x00", "\N{REPLACEMENT CHARACTER}"),
            "line": error.line,
            "param": error.param,
        }
        for error in errors
    ]


def cancelling(which: ColumnElement[bool]) -> Update:
    """Return what has batches cancelled that have not ended; those not validated yet end with it.

    What these have of items is to be deleted in the same transaction.
    """
    now = func.statement_timestamp()
    is_new = batches.c.state == BatchState.VALIDATING
    return (
        update(batches)
        .where(which, batches.c.state.in_([BatchState.VALIDATING, BatchState.IN_PROGRESS]))
        .values(
            state=case((is_new, BatchState.CANCELLED), else_=BatchState.CANCELLING),
            cancelling_at=now,
            ended_at=case((is_new, now)),
            lease_until=None,
            # It waits for nothing any longer.
            paused_for=None,
        )
    )


async def delete_items(connection: AsyncConnection, batch_ids: Sequence[UUID]) -> None:
    """Delete what batches have of items and results."""
    if batch_ids:
        for table in (batch_results, batch_items):
            await connection.execute(delete(table).where(table.c.batch_id.in_(batch_ids)))
