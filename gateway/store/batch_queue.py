"""The items of batches in PostgreSQL: who runs which, until when, and what came of it.

A worker claims items for the length of a lease, in a short transaction: no lock is held while they
run. Each claim makes the item's next generation, and whatever is done to an item later is done only
while its generation is the same and it still runs. So a worker that was stopped beyond its lease,
or cut off, may go on as long as it likes: what it says is dropped, bill included, as results and
bills are one transaction (`item_results`, called by the ledger).

An item whose lease passed goes back to the queue and comes out again; after `MAX_DEATHS` of its
workers it is taken to be what kills them, and waits to be looked at by an operator.

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

from gateway.domain.batch import ClaimedItem, ItemResult, ItemRun
from gateway.store.database import Database
from gateway.store.pools import Purpose

MAX_DEATHS: Final = 3

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
        return await self._change(_RENEW, runs, {"lease_s": lease_s})

    async def give_back(
        self, runs: Collection[ItemRun], *, is_unharmed: bool, after_s: float = 0.0
    ) -> Collection[ItemRun]:
        more = {"attempts": 1 if is_unharmed else 0, "after_s": after_s}
        return await self._change(_GIVE_BACK, runs, more)

    async def take_back(self, limit: int) -> int:
        async with self._database.platform(Purpose.LEDGER) as connection:
            found = await connection.execute(_TAKE_BACK, {"limit": limit, "most": MAX_DEATHS})
            return len(found.all())

    async def _change(
        self, statement: TextClause, runs: Collection[ItemRun], more: Mapping[str, object]
    ) -> Collection[ItemRun]:
        if not runs:
            return set()
        async with self._database.platform(Purpose.LEDGER) as connection:
            rows = await connection.execute(statement, {"runs": _named(runs), **more})
            return {ItemRun(*row) for row in rows}


async def item_results(
    connection: AsyncConnection, results: Sequence[tuple[ItemResult, tuple[int, int, int]]]
) -> set[ItemRun]:
    """Store results, each with its tokens of input, cached and of output; return whose were.

    A run that is not its item's any longer is not among them, nor is one that was stored before:
    neither changes anything.
    """
    if not results:
        return set()
    given = [
        {
            "batch_id": result.run.batch_id,
            "line": result.run.line,
            "generation": result.run.generation,
            "is_error": result.is_error,
            # JSONB knows no bytes.
            "body": result.body.hex(),
            "input_tokens": tokens[0],
            "cached_tokens": tokens[1],
            "output_tokens": tokens[2],
        }
        for result, tokens in results
    ]
    rows = await connection.execute(_STORE, {"results": _encoder.encode(given).decode()})
    return {ItemRun(*row) for row in rows}


def _named(runs: Collection[ItemRun]) -> str:
    return _encoder.encode(sorted(runs)).decode()


# Materialized: a plan that ran it again for each row would hand out more than the limit.
_CLAIM: Final = text(
    """
    WITH next AS MATERIALIZED (
        SELECT line FROM batch_items
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
    FROM next WHERE item.batch_id = :batch_id AND item.line = next.line
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
        run_after = CASE WHEN num_deaths + 1 < :most THEN clock_timestamp() ELSE 'infinity' END
    FROM dead WHERE item.batch_id = dead.batch_id AND item.line = dead.line
    RETURNING item.line
    """
)
_STORE: Final = text(
    """
    WITH given AS MATERIALIZED (
        SELECT * FROM jsonb_to_recordset(CAST(:results AS jsonb)) AS given(
            batch_id uuid, line int, generation int, is_error boolean, body text,
            input_tokens bigint, cached_tokens bigint, output_tokens bigint
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
        RETURNING item.tenant_id, given.*
    ),
    kept AS (
        INSERT INTO batch_results (batch_id, line, tenant_id, is_error, body)
        SELECT batch_id, line, tenant_id, is_error, decode(body, 'hex') FROM ended
    ),
    counted AS MATERIALIZED (
        SELECT batches.id, sums.* FROM (
            SELECT batch_id, count(*) FILTER (WHERE NOT is_error) AS num_done,
                count(*) FILTER (WHERE is_error) AS num_failed,
                sum(input_tokens) AS input_tokens, sum(cached_tokens) AS cached_tokens,
                sum(output_tokens) AS output_tokens
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
            output_tokens = batches.output_tokens + counted.output_tokens
        FROM counted WHERE batches.id = counted.batch_id
    )
    SELECT batch_id, line, generation FROM ended
    """
)
