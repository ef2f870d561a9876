"""The items of batches in PostgreSQL: who runs which, until when, and what came of it.

A worker claims items for the length of a lease, in a short transaction: no lock is held while they
run. Each claim makes the item's next generation, and whatever is done to an item later is done only
while its generation is the same and it still runs. So a worker that was stopped beyond its lease,
or cut off, may go on as long as it likes: what it says is dropped, bill included, as results and
bills are one transaction (`item_results`, called by the ledger).

An item whose lease passed goes back to the queue and comes out again; after `MAX_DEATHS` of its
workers it is taken to be what kills them, and waits for an operator (`dead_items`). Before its last
try it waits for some part of `APART_S`: what ran beside it each time is then not beside it again.

Time is the database's. Several workers claim from one batch at once and never wait for each other.
Nothing here is told through Redis.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final
from uuid import UUID

import msgspec
from sqlalchemy import TextClause, text
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.domain.batch import ClaimedItem, ItemRun
from gateway.domain.usage import ItemRow
from gateway.store.database import Database
from gateway.store.pools import Purpose

MAX_DEATHS: Final = 3
# Long beside what an item takes, short beside a window.
# With a lease and a sweep it comes to less than 45 s.
APART_S: Final = 9.0
# Where workers are told that there is a new batch.
CHANNEL: Final = "sluice_batches"

_encoder = msgspec.json.Encoder()


class SqlBatchQueue:
    """Implement `BatchQueue`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def claim(
        self, batch_id: UUID, worker_id: UUID, *, limit: int, lease_s: float
    ) -> Sequence[ClaimedItem]:
        given = {"batch_id": batch_id, "worker_id": worker_id, "limit": limit, "lease_s": lease_s}
        async with self._database.platform(Purpose.LEDGER) as connection:
            rows = (await connection.execute(_CLAIM, given)).all()
        return [
            ClaimedItem(
                ItemRun(batch_id, row.line, row.generation),
                row.tenant_id,
                row.offset_bytes,
                row.size_bytes,
                row.num_attempts,
            )
            for row in sorted(rows, key=lambda row: (row.place, row.line))
        ]

    async def renew(self, runs: Collection[ItemRun], *, lease_s: float) -> Collection[ItemRun]:
        if not runs:
            return set()
        async with self._database.platform(Purpose.LEDGER) as connection:
            return await renew_runs(connection, runs, lease_s)

    async def give_back(
        self, runs: Collection[ItemRun], *, is_unharmed: bool, after_s: float = 0.0
    ) -> Collection[ItemRun]:
        more = {"attempts": 1 if is_unharmed else 0, "after_s": after_s}
        return await self._change(_GIVE_BACK, runs, more)

    async def take_back(self, limit: int) -> int:
        async with self._database.platform(Purpose.LEDGER) as connection:
            given = {"limit": limit, "most": MAX_DEATHS, "apart_s": APART_S}
            found = await connection.execute(_TAKE_BACK, given)
            return len(found.all())

    async def _change(
        self, statement: TextClause, runs: Collection[ItemRun], more: Mapping[str, object]
    ) -> Collection[ItemRun]:
        if not runs:
            return set()
        async with self._database.platform(Purpose.LEDGER) as connection:
            rows = await connection.execute(statement, {"runs": _named(runs), **more})
            return {ItemRun(*row) for row in rows}


async def renew_runs(
    connection: AsyncConnection, runs: Collection[ItemRun], lease_s: float
) -> Collection[ItemRun]:
    """Prolong leases; see `BatchQueue.renew`."""
    rows = await connection.execute(_RENEW, {"runs": _named(runs), "lease_s": lease_s})
    return {ItemRun(*row) for row in rows}


async def item_results(connection: AsyncConnection, rows: Sequence[ItemRow]) -> set[ItemRun]:
    """Store the results of rows, and sum these on their batches; return whose were stored.

    A run that is not its item's any longer is not among them, nor is one that was stored before:
    neither changes anything.
    """
    if not rows:
        return set()
    given = [
        {
            "batch_id": row.item.run.batch_id,
            "line": row.item.run.line,
            "generation": row.item.run.generation,
            "is_error": row.item.is_error,
            "input_tokens": row.input_tokens,
            "cached_tokens": row.cached_tokens,
            "output_tokens": row.output_tokens,
            "nano_usd": row.nano_usd,
            # One that does not say has saved nothing.
            "full_nano_usd": row.nano_usd if row.full_nano_usd is None else row.full_nano_usd,
        }
        for row in rows
    ]
    # As they are: megabytes in hex, within JSON, took the event loop as long as to read them did.
    bodies = [row.item.body for row in rows]
    said = {"results": _encoder.encode(given).decode(), "bodies": bodies}
    stored = await connection.execute(_STORE, said)
    return {ItemRun(*run) for run in stored}


def _named(runs: Collection[ItemRun]) -> str:
    return _encoder.encode(sorted(runs)).decode()


# Materialized: a plan that ran it again for each row would hand out more than the limit. And joined
# by both columns: of a batch that the statistics do not know yet they expect one row in all, and a
# plan that begins with the batch's rows reads them all for each item.
_CLAIM: Final = text(
    """
    WITH next AS MATERIALIZED (
        SELECT batch_id, line FROM batch_items
        WHERE batch_id = :batch_id AND state = 'pending' AND run_after <= clock_timestamp()
        AND EXISTS (
            SELECT FROM batches
            WHERE id = :batch_id AND state = 'in_progress' AND paused_for IS NULL
            AND expires_at > clock_timestamp()
        )
        ORDER BY place, line LIMIT :limit FOR UPDATE SKIP LOCKED
    )
    UPDATE batch_items AS item SET
        state = 'running', generation = generation + 1, num_attempts = num_attempts + 1,
        worker_id = :worker_id,
        lease_until = clock_timestamp() + make_interval(secs => :lease_s)
    FROM next WHERE item.batch_id = next.batch_id AND item.line = next.line
    RETURNING item.line, item.generation, item.tenant_id, item.offset_bytes, item.size_bytes,
        item.num_attempts, item.place
    """
)
# Here and below, what is locked is locked in one order, so that nobody waits in a circle.
_RENEW: Final = text(
    """
    WITH held AS MATERIALIZED (
        SELECT item.batch_id, item.line, item.generation
        FROM jsonb_to_recordset(CAST(:runs AS jsonb))
            AS given(batch_id uuid, line int, generation int)
        JOIN batch_items AS item USING (batch_id, line, generation)
        WHERE item.state = 'running'
        ORDER BY item.batch_id, item.line FOR UPDATE OF item
    )
    UPDATE batch_items AS item
    SET lease_until = clock_timestamp() + make_interval(secs => :lease_s)
    FROM held WHERE item.batch_id = held.batch_id AND item.line = held.line
    RETURNING item.batch_id, item.line, item.generation
    """
)
_GIVE_BACK: Final = text(
    """
    WITH held AS MATERIALIZED (
        SELECT item.batch_id, item.line, item.generation
        FROM jsonb_to_recordset(CAST(:runs AS jsonb))
            AS given(batch_id uuid, line int, generation int)
        JOIN batch_items AS item USING (batch_id, line, generation)
        WHERE item.state = 'running'
        ORDER BY item.batch_id, item.line FOR UPDATE OF item
    )
    UPDATE batch_items AS item SET
        state = 'pending', worker_id = NULL, lease_until = NULL,
        num_attempts = num_attempts - :attempts,
        run_after = clock_timestamp() + make_interval(secs => :after_s)
    FROM held WHERE item.batch_id = held.batch_id AND item.line = held.line
    RETURNING item.batch_id, item.line, item.generation
    """
)
_TAKE_BACK: Final = text(
    """
    WITH dead AS MATERIALIZED (
        SELECT batch_id, line FROM batch_items
        WHERE state = 'running' AND lease_until < clock_timestamp()
        ORDER BY lease_until LIMIT :limit FOR UPDATE SKIP LOCKED
    )
    UPDATE batch_items AS item SET
        state = 'pending', worker_id = NULL, lease_until = NULL, num_deaths = num_deaths + 1,
        run_after = CASE
            WHEN num_deaths + 1 >= :most THEN 'infinity'
            WHEN num_deaths + 1 = :most - 1
                THEN clock_timestamp() + random() * make_interval(secs => :apart_s)
            ELSE clock_timestamp()
        END,
        dead_at = CASE WHEN num_deaths + 1 >= :most THEN clock_timestamp() END
    FROM dead WHERE item.batch_id = dead.batch_id AND item.line = dead.line
    RETURNING item.line
    """
)
_STORE: Final = text(
    """
    WITH given AS MATERIALIZED (
        SELECT * FROM ROWS FROM (
            jsonb_to_recordset(CAST(:results AS jsonb)) AS (
                batch_id uuid, line int, generation int, is_error boolean,
                input_tokens bigint, cached_tokens bigint, output_tokens bigint,
                nano_usd bigint, full_nano_usd bigint
            ),
            unnest(CAST(:bodies AS bytea[]))
        ) AS given(
            batch_id, line, generation, is_error, input_tokens, cached_tokens, output_tokens,
            nano_usd, full_nano_usd, body
        )
    ),
    held AS MATERIALIZED (
        SELECT item.batch_id, item.line, item.generation
        FROM given JOIN batch_items AS item USING (batch_id, line, generation)
        WHERE item.state = 'running'
        ORDER BY item.batch_id, item.line FOR UPDATE OF item
    ),
    ended AS (
        UPDATE batch_items AS item SET
            state = CASE WHEN given.is_error THEN 'failed' ELSE 'done' END,
            worker_id = NULL, lease_until = NULL
        FROM held JOIN given USING (batch_id, line, generation)
        WHERE item.batch_id = held.batch_id AND item.line = held.line
        RETURNING item.tenant_id, item.enqueued_tokens, given.*
    ),
    kept AS (
        INSERT INTO batch_results (batch_id, line, tenant_id, is_error, body)
        SELECT batch_id, line, tenant_id, is_error, body FROM ended
    ),
    counted AS MATERIALIZED (
        SELECT batches.id, batches.tenant_id, sums.* FROM (
            SELECT batch_id, count(*) FILTER (WHERE NOT is_error) AS num_done,
                count(*) FILTER (WHERE is_error) AS num_failed,
                sum(input_tokens) AS input_tokens, sum(cached_tokens) AS cached_tokens,
                sum(output_tokens) AS output_tokens, sum(enqueued_tokens) AS enqueued_tokens,
                sum(nano_usd) AS nano_usd, sum(full_nano_usd) AS full_nano_usd,
                sum(length(body)) AS num_bytes
            FROM ended GROUP BY batch_id
        ) AS sums JOIN batches ON batches.id = sums.batch_id
        ORDER BY batches.id FOR UPDATE OF batches
    ),
    told AS (
        UPDATE batches SET
            num_done = batches.num_done + counted.num_done,
            num_failed = batches.num_failed + counted.num_failed,
            input_tokens = batches.input_tokens + counted.input_tokens,
            cached_tokens = batches.cached_tokens + counted.cached_tokens,
            output_tokens = batches.output_tokens + counted.output_tokens,
            cost_nano_usd = batches.cost_nano_usd + counted.nano_usd,
            full_nano_usd = batches.full_nano_usd + counted.full_nano_usd,
            enqueued_tokens = batches.enqueued_tokens - counted.enqueued_tokens
        FROM counted WHERE batches.id = counted.batch_id
    ),
    weighed AS (
        INSERT INTO batch_bytes AS known (batch_id, tenant_id, num_bytes)
        SELECT id, tenant_id, num_bytes FROM counted ORDER BY id
        ON CONFLICT (batch_id) DO UPDATE SET num_bytes = known.num_bytes + excluded.num_bytes
    )
    SELECT batch_id, line, generation FROM ended
    """
)
