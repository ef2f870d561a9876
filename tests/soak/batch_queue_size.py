"""A queue of a million items over 200 tenants: what a claim takes at its beginning, in its midst
and once all of them are done.

The items are there by SQL alone; they are claimed and completed through the queue's own statements,
so that what is done lies dead in the tables as it does in service.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID, uuid4

import asyncpg

from gateway.domain.batch import ClaimedItem, ItemResult
from gateway.domain.usage import ItemRow
from gateway.store import Store
from gateway.store.batch_queue import item_results
from gateway.store.pools import Purpose
from tests.gateway.usage_rows import usage_row
from tests.soak.batch_fenced import Ground

_CLAIM: Final = 64
_CLAIMERS: Final = 2
_LEASE_S: Final = 600.0
_BODY: Final = b'{"id":"batch_req_0","response":{"status_code":200,"body":{}}}' * 5
# Of all claims: the first and those around the middle.
_AT_FIRST, _MIDST = 0.05, (0.45, 0.55)
_AFTER_CLAIMS: Final = 1_000


@dataclass
class QueueSize:
    """Hold what claims took, in seconds, and what the tables of items are like in the end."""

    items: int
    tenants: int
    filled_s: float = 0.0
    done_s: float = 0.0
    done: int = 0
    first_s: list[float] = field(default_factory=list)
    midst_s: list[float] = field(default_factory=list)
    after_s: list[float] = field(default_factory=list)
    table: dict[str, Any] = field(default_factory=dict)


async def queue_size(
    ground: Ground, *, items: int, tenants: int, after_claims: int = _AFTER_CLAIMS
) -> QueueSize:
    """Fill the queue, run it empty, and claim from what comes then."""
    result = QueueSize(items, tenants)
    each = items // tenants
    began = time.monotonic()
    batches = await _filled(ground.database, tenants, each, "first")
    await ground.database.execute("ANALYZE batch_items")
    result.filled_s = time.monotonic() - began
    began = time.monotonic()
    await _run_empty(ground.store, batches, result, num_claims=-(-each // _CLAIM) * tenants)
    result.done_s = time.monotonic() - began
    more = await _filled(ground.database, tenants, -(-after_claims // tenants) * _CLAIM, "after")
    turns = itertools.cycle(more)
    for _ in range(after_claims):
        await _claim(ground.store, next(turns), result.after_s)
    result.table = await _table(ground.database)
    return result


async def _filled(database: asyncpg.Pool, tenants: int, each: int, name: str) -> list[UUID]:
    """Give each of so many new tenants a batch that is in progress; return their ids."""
    organisation_id = await database.fetchval("SELECT id FROM organisations LIMIT 1")
    batches = []
    for number in range(tenants):
        tenant_id, batch_id = uuid4(), uuid4()
        await database.execute(
            "INSERT INTO tenants (id, organisation_id, name, weight) VALUES ($1, $2, $3, 1)",
            tenant_id,
            organisation_id,
            f"{name}-{number}",
        )
        await database.execute(
            "INSERT INTO batches (id, tenant_id, key_id, endpoint, state, input_file_id, "
            "completion_window_s, num_items, enqueued_tokens, expires_at, in_progress_at) "
            "VALUES ($1, $2, $3, '/v1/completions', 'in_progress', $4, 86400, $5, $5 * 10, "
            "now() + interval '7 days', now())",
            batch_id,
            tenant_id,
            uuid4(),
            uuid4(),
            each,
        )
        await database.execute(
            "INSERT INTO batch_items (batch_id, tenant_id, line, custom_id, place, offset_bytes, "
            "size_bytes, enqueued_tokens) SELECT $1, $2, line, 'request-' || line, line, "
            "line * 100, 100, 10 FROM generate_series(1, $3::int) AS line",
            batch_id,
            tenant_id,
            each,
        )
        batches.append(batch_id)
    return batches


async def _run_empty(
    store: Store, batches: list[UUID], result: QueueSize, *, num_claims: int
) -> None:
    """Claim and complete all, a batch after the other in turns, by claimers beside each other."""
    turns: Iterator[tuple[int, UUID]] = zip(
        range(num_claims), itertools.cycle(batches), strict=False
    )

    async def claimer() -> None:
        for number, batch_id in turns:
            share, taken = number / num_claims, list[float]()
            items = await _claim(store, batch_id, taken)
            if share < _AT_FIRST:
                result.first_s += taken
            elif _MIDST[0] <= share < _MIDST[1]:
                result.midst_s += taken
            num_done = await _complete(store, items)
            result.done += num_done

    async with asyncio.TaskGroup() as group:
        for _ in range(_CLAIMERS):
            group.create_task(claimer())


async def _claim(store: Store, batch_id: UUID, taken_s: list[float]) -> list[ClaimedItem]:
    began = time.perf_counter()
    items = await store.batch_queue.claim(batch_id, uuid4(), limit=_CLAIM, lease_s=_LEASE_S)
    taken_s.append(time.perf_counter() - began)
    return list(items)


async def _complete(store: Store, items: list[ClaimedItem]) -> int:
    bill = usage_row(is_batch=True, input_tokens=10, output_tokens=10)
    rows = [ItemRow.of(bill, ItemResult(item.run, False, _BODY)) for item in items]
    async with store.database.platform(Purpose.LEDGER) as connection:
        return len(await item_results(connection, rows))


async def _table(database: asyncpg.Pool) -> dict[str, Any]:
    row = await database.fetchrow(
        "SELECT n_live_tup, n_dead_tup, autovacuum_count, "
        "pg_total_relation_size('batch_items') >> 20 AS total_mib "
        "FROM pg_stat_user_tables WHERE relname = 'batch_items'"
    )
    assert row is not None
    return dict(row)
