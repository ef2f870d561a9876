"""What batches have left to do, in PostgreSQL: summed over the batches, of which there are few.

Items may be millions; a batch has counts of its own, and what runs is an index of its own.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import text

from gateway.domain.batch import BatchBacklog
from gateway.store.database import Database
from gateway.store.pools import Purpose


class SqlBatchBacklog:
    """Implement `BacklogStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def backlog(self) -> BatchBacklog:
        async with self._database.platform(Purpose.REPORTS) as connection:
            row = (await connection.execute(_BACKLOG)).one()
        pending = max(0, row.num_open - row.num_running)
        return BatchBacklog(pending, row.num_running, max(0.0, row.oldest_s) if pending else 0.0)


_BACKLOG: Final = text(
    """
    SELECT
        (SELECT count(*) FROM batch_items WHERE state = 'running') AS num_running,
        coalesce(sum(num_items - num_done - num_failed - num_dropped), 0)::bigint AS num_open,
        coalesce(
            extract(epoch FROM clock_timestamp() - min(in_progress_at) FILTER (
                WHERE num_items > num_done + num_failed + num_dropped
            )), 0
        )::float8 AS oldest_s
    FROM batches WHERE ended_at IS NULL AND state = 'in_progress'
    """
)
