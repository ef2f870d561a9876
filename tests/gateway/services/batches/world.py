"""Batches over a real store and a real directory, moved on by a gateway's upkeep or by two."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast
from uuid import UUID, uuid4

from gateway.domain import Principal
from gateway.domain.batch import Batch, BatchBounds, BatchDraft, ItemResult
from gateway.domain.files import BATCH_INPUT, FileDraft
from gateway.domain.usage import ItemRow
from gateway.errors import ModelNotFound
from gateway.services.batches import BatchService, BatchUpkeep, Finalizer, Validator
from gateway.services.fair_pool import FairPool
from gateway.services.inference import ModelRegistry, ServedModel
from gateway.services.ledger import PriceBook
from gateway.store import Store
from gateway.store.file_storage import DirectoryStorage
from tests.gateway.usage_rows import usage_row

MODEL = "sim"
ENDPOINT = "/v1/completions"


class OneModel:
    """Serve one model, by its name alone."""

    def __init__(self, name: str = MODEL) -> None:
        self._name = name

    def get(self, name: str) -> ServedModel:
        if name != self._name:
            raise ModelNotFound
        return cast(ServedModel, type("Named", (), {"name": name}))


@dataclass(slots=True)
class World:
    """Hold a store, a storage, and one gateway's upkeep of batches."""

    store: Store
    storage: DirectoryStorage
    pool: FairPool
    bounds: BatchBounds = field(default_factory=BatchBounds)

    def upkeep(
        self,
        *,
        model: str = MODEL,
        elsewhere: Callable[[Collection[str]], bool] = lambda names: False,
        **more: Any,
    ) -> BatchUpkeep:
        """Make what a gateway that serves a model moves batches on with."""
        steps = self.store.batch_steps
        models, prices = cast(ModelRegistry, OneModel(model)), PriceBook(self.store.prices)
        validator = Validator(
            steps,
            self.storage,
            models,
            prices,
            self.pool,
            bounds=self.bounds,
            may_be_elsewhere=elsewhere,
        )
        return BatchUpkeep(steps, validator, Finalizer(steps, self.storage), **more)

    def service(self) -> BatchService:
        return BatchService(self.store.batches, self.store.files, lambda: None)

    def principal(self, tenant: int = 0, **changes: Any) -> Principal:
        assert self.store.first_start is not None
        key = self.store.first_start.keys[tenant].key
        principal = Principal(
            organisation_id=UUID(int=1),
            tenant_id=key.tenant_id,
            tenant=key.tenant,
            weight=1.0,
            key_id=key.id,
            kid=key.kid,
        )
        return replace(principal, **changes)

    async def upload(self, data: bytes, tenant: int = 0, purpose: str = BATCH_INPUT) -> UUID:
        """Store a file of a tenant."""
        tenant_id = self.principal(tenant).tenant_id
        draft = FileDraft(uuid4(), tenant_id, "input.jsonl", purpose)
        await self.store.files.begin(draft)
        written = await self.storage.write(draft.id, _chunks(data), max_bytes=1 << 30)
        await self.store.files.complete(tenant_id, draft.id, written, max_stored_bytes=None)
        return draft.id

    async def submit(self, data: bytes, tenant: int = 0, **changes: Any) -> Batch:
        """Make a batch of an input, which waits to be validated."""
        principal = self.principal(tenant)
        draft = BatchDraft(
            id=uuid4(),
            tenant_id=principal.tenant_id,
            key_id=principal.key_id,
            endpoint=ENDPOINT,
            input_file_id=await self.upload(data, tenant),
            completion_window_s=86_400,
        )
        return await self.store.batches.create(replace(draft, **changes))

    async def seen(self, batch: Batch) -> Batch:
        found = await self.store.batches.get(batch.tenant_id, batch.id)
        assert found is not None
        return found

    async def run(
        self, batch: Batch, limit: int, *, is_error: bool = False, text: str = ""
    ) -> None:
        """Run some of a batch's items, as a worker does; each answer has the text."""
        claimed = await self.store.batch_queue.claim(batch.id, uuid4(), limit=limit, lease_s=60)
        rows = []
        for item in claimed:
            line = {"custom_id": f"r{item.run.line}", "line": item.run.line, "text": text}
            body = json.dumps(line, ensure_ascii=False).encode()
            row = usage_row(tenant_id=item.tenant_id, is_batch=True, at=datetime.now(UTC))
            result = ItemResult(item.run, is_error, body)
            rows.append(ItemRow.of(row, result, full_nano_usd=3 * row.nano_usd))
        await self.store.ledger.insert(rows)

    async def lines(self, batch: Batch, file_id: UUID | None) -> list[dict[str, Any]]:
        """Read a file that a batch has given its tenant."""
        if file_id is None:
            return []
        assert await self.store.files.get(batch.tenant_id, file_id) is not None
        data = b"".join([chunk async for chunk in self.storage.read(file_id)])
        return [json.loads(line) for line in data.decode().splitlines()]

    async def alter(self, batch: Batch, changes: str) -> None:
        """Change a batch's row beside everything, as time does."""
        async with self.store.database.platform() as connection:
            await connection.exec_driver_sql(
                f"UPDATE batches SET {changes} WHERE id = '{batch.id}'"
            )


def requests(num: int, **body: Any) -> bytes:
    """Write an input of so many lines; the custom id of each has its number, from 1."""
    lines = [
        {
            "custom_id": f"r{number}",
            "method": "POST",
            "url": ENDPOINT,
            "body": {"model": MODEL, "prompt": f"prompt {number}", "max_tokens": 4} | body,
        }
        for number in range(1, num + 1)
    ]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


@asynccontextmanager
async def open_world(store: Store, directory: Path) -> AsyncIterator[World]:
    storage = DirectoryStorage(directory, min_free_bytes=0)
    pool = FairPool()
    try:
        yield World(store, storage, pool)
    finally:
        pool.close()
        storage.close()


async def _chunks(data: bytes) -> AsyncIterator[bytes]:
    for first in range(0, len(data), 100_000):
        yield data[first : first + 100_000]


def by_line(lines: Sequence[dict[str, Any]]) -> list[str]:
    return [line["custom_id"] for line in lines]
