"""Batches of real requests in a real store: written, noted, and ready to be run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import text

from gateway.domain import ApiKey
from gateway.domain.batch import Batch, BatchDraft, NewItem
from gateway.domain.files import FileDraft
from gateway.ports import FileStorage
from gateway.store.batch_steps import SqlBatchSteps
from gateway.store.batches import SqlBatches
from gateway.store.database import Database
from gateway.store.files import SqlFiles

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


async def submit(
    database: Database,
    storage: FileStorage,
    key: ApiKey,
    bodies: Sequence[Mapping[str, Any]],
    *,
    endpoint: str = COMPLETIONS,
    window_s: int = 86400,
    price_ids: Mapping[str, UUID] | None = None,
) -> BatchDraft:
    """Have requests wait as a batch; those are its lines, from 1."""
    file_id = uuid4()
    lines = [
        json.dumps({"custom_id": f"id-{line}", "method": "POST", "url": endpoint, "body": body})
        for line, body in enumerate(bodies, 1)
    ]

    async def chunks() -> AsyncIterator[bytes]:
        for line in lines:
            yield line.encode() + b"\n"

    files = SqlFiles(database)
    await files.begin(FileDraft(file_id, key.tenant_id, "input.jsonl", "batch"))
    written = await storage.write(file_id, chunks(), max_bytes=1 << 30)
    await files.complete(key.tenant_id, file_id, written, max_stored_bytes=None)
    draft = BatchDraft(uuid4(), key.tenant_id, key.id, endpoint, file_id, window_s)
    await SqlBatches(database).create(draft)
    items, offset = [], 0
    for line, raw in enumerate(lines, 1):
        size = len(raw.encode())
        items.append(NewItem(line, f"id-{line}", line, offset, size, 10))
        offset += size + 1
    steps = SqlBatchSteps(database)
    await steps.add_items(draft.id, items)
    assert await steps.start(draft.id, price_ids or {})
    return draft


async def over(database: Database, draft: BatchDraft, num_items: int) -> Batch:
    """Wait until all items of a batch are over, and return it."""
    batches = SqlBatches(database)
    async with asyncio.timeout(60):
        while True:
            batch = await batches.get(draft.tenant_id, draft.id)
            assert batch is not None
            if batch.num_done + batch.num_failed + batch.num_dropped == num_items:
                return batch
            await asyncio.sleep(0.05)


async def results_of(database: Database, draft: BatchDraft) -> list[Any]:
    """Return the lines of both of a batch's files, in the order of its items."""
    found = []
    for is_error in (False, True):
        async for part in SqlBatchSteps(database).results(draft.id, is_error=is_error):
            found += [(result.run.line, json.loads(result.body)) for result in part]
    return [body for _, body in sorted(found, key=lambda one: one[0])]


async def ledger_of(database: Database, key: ApiKey) -> list[Any]:
    """Return a key's rows of the ledger."""
    query = text("SELECT * FROM usage_events WHERE key_id = :key_id ORDER BY at")
    async with database.platform() as connection:
        return list((await connection.execute(query, {"key_id": key.id})).all())
