"""Batches in a real store, for tests: made, validated, run and over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import insert, text

from gateway.domain import ApiKey
from gateway.domain.batch import Batch, BatchDraft, ClaimedItem, ItemResult, NewItem
from gateway.domain.files import BATCH_OUTPUT, FileDraft, WholeFile, Written
from gateway.domain.usage import ItemRow
from gateway.store import Store
from gateway.store.batch_queue import MAX_DEATHS
from gateway.store.batch_tables import files
from tests.gateway.usage_rows import usage_row

LEASE_S = 60.0


def key_of(store: Store, tenant: int = 0) -> ApiKey:
    assert store.first_start is not None
    return store.first_start.keys[tenant].key


async def stored_file(store: Store, tenant: int = 0) -> UUID:
    """Note a file that is whole; nothing reads its bytes."""
    file_id = uuid4()
    values = {
        "id": file_id,
        "tenant_id": key_of(store, tenant).tenant_id,
        "filename": "input.jsonl",
        "purpose": "batch",
        "is_ready": True,
        "sha256": bytes(32),
    }
    async with store.database.platform() as connection:
        await connection.execute(insert(files).values(**values))
    return file_id


async def draft_of(store: Store, tenant: int = 0, **changes: object) -> BatchDraft:
    key = key_of(store, tenant)
    draft = BatchDraft(
        id=uuid4(),
        tenant_id=key.tenant_id,
        key_id=key.id,
        endpoint="/v1/completions",
        input_file_id=await stored_file(store, tenant),
        completion_window_s=86400,
    )
    return replace(draft, **changes)  # type: ignore[arg-type]


def new_items(num_items: int, tokens: int = 10) -> list[NewItem]:
    return [
        NewItem(line, f"item-{line}", num_items - line, 100 * line, 99, tokens)
        for line in range(1, num_items + 1)
    ]


async def running_batch(store: Store, num_items: int, tenant: int = 0, **changes: object) -> Batch:
    """Make a batch that has been validated."""
    draft = await draft_of(store, tenant, **changes)
    await store.batches.create(draft)
    await store.batch_steps.add_items(draft.id, new_items(num_items))
    assert await store.batch_steps.start(draft.id, {})
    return await seen(store, draft)


async def seen(store: Store, batch: Batch | BatchDraft) -> Batch:
    """Return a batch as it stands now."""
    found = await store.batches.get(batch.tenant_id, batch.id)
    assert found is not None
    return found


async def claimed(store: Store, batch: Batch, limit: int = 1) -> Sequence[ClaimedItem]:
    return await store.batch_queue.claim(batch.id, uuid4(), limit=limit, lease_s=LEASE_S)


async def ended(store: Store, items: Sequence[ClaimedItem], *, is_error: bool = False) -> None:
    """Store a result for each item, as the ledger does."""
    rows = []
    for item in items:
        row = usage_row(tenant_id=item.tenant_id, is_batch=True, at=datetime.now(UTC))
        body = b'{"line":%d}' % item.run.line
        rows.append(ItemRow.of(row, ItemResult(item.run, is_error, body)))
    await store.ledger.insert(rows)


async def lines_of(store: Store, batch: Batch) -> tuple[list[int], list[int]]:
    """Return the lines of what goes into the output file and into the error file."""
    steps = store.batch_steps
    good = [r.run.line async for part in steps.results(batch.id, is_error=False) for r in part]
    bad = [r.run.line async for part in steps.results(batch.id, is_error=True) for r in part]
    dropped = [line async for part in steps.dropped(batch.id) for line, _, _ in part]
    return good, sorted(bad + dropped)


async def alter(store: Store, table: str, changes: str, batch: Batch | BatchDraft) -> None:
    """Change rows of a batch beside everything, as time does."""
    name = "id" if table == "batches" else "batch_id"
    statement = f"UPDATE {table} SET {changes} WHERE {name} = :id"
    async with store.database.platform() as connection:
        await connection.execute(text(statement), {"id": batch.id})


async def killed(store: Store, batch: Batch, num_items: int = 1) -> list[int]:
    """Have as many workers die of the next items as it takes; return their lines."""
    lines: list[int] = []
    for _ in range(MAX_DEATHS):
        items = await store.batch_queue.claim(batch.id, uuid4(), limit=num_items, lease_s=0)
        lines = sorted(item.run.line for item in items)
        await store.batch_queue.take_back(100)
        due = "run_after = CASE WHEN dead_at IS NULL THEN now() ELSE run_after END"
        await alter(store, "batch_items", due, batch)
    return lines


async def num_rows(store: Store, batch: Batch | BatchDraft) -> int:
    """Count what is stored of a batch's items and results."""
    async with store.database.platform() as connection:
        counted = await connection.scalar(
            text(
                "SELECT (SELECT count(*) FROM batch_items WHERE batch_id = :id) "
                "+ (SELECT count(*) FROM batch_results WHERE batch_id = :id)"
            ),
            {"id": batch.id},
        )
        return int(counted or 0)


def whole_file(batch: Batch) -> WholeFile:
    """Return a file of a batch whose bytes are said to be there."""
    draft = FileDraft(uuid4(), batch.tenant_id, "output.jsonl", BATCH_OUTPUT)
    return WholeFile(draft, Written(0, bytes(32)))


def most_rows(plan: dict[str, Any]) -> float:
    """Return how many rows a step of a plan gave or dropped, over all of its loops, at most."""
    seen = plan["Actual Rows"] + plan.get("Rows Removed by Join Filter", 0)
    return max([seen * plan["Actual Loops"], *map(most_rows, plan.get("Plans", ()))])
