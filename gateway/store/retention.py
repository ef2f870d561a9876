"""How long things are kept that only grow: events of limits, kept answers, batches, responses.

The days of the ledger have a room of their own (`partitions`); the audit log is never shortened.

An answer that goes leaves its record: until that is a day old, who sends the request again is told
that the answer is not kept, and nothing is computed twice. Answers go by their age, and where a
tenant's together are more bytes than it may have: its oldest first, down to the bound. Between two
rounds a tenant can be above it, by what it is answered meanwhile.

One gateway works at a time, under an advisory lock for each batch; another leaves it to that one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import text

from gateway.background import JITTER, Background
from gateway.domain.idempotency import KEEP_S
from gateway.store.database import Database
from gateway.store.pools import Purpose
from gateway.store.responses import RESPONSES_ABOVE

ANSWERS_EVERY_S: Final = 60.0
EVENTS_EVERY_S: Final = 3600.0
BATCHES_EVERY_S: Final = 3600.0
RESPONSES_EVERY_S: Final = 300.0
_ROWS: Final = 500
# One beside those of the prices and of settings that are applied.
_LOCK: Final = 7_308_325_614_571_844_470

_MINE_ALONE = text(f"SELECT pg_try_advisory_xact_lock({_LOCK})")
# What waits for a webhook stays until that is settled.
_OLD_EVENTS = text(
    """
    DELETE FROM quota_events WHERE id IN (
        SELECT id FROM quota_events
        WHERE at < now() - CAST(:age AS interval) AND next_attempt_at IS NULL
        LIMIT :num_rows FOR UPDATE SKIP LOCKED
    )
    """
)
# What is left of one is its row: its items and results went as it ended, files have their own time.
_OLD_BATCHES = text(
    """
    DELETE FROM batches WHERE id IN (
        SELECT id FROM batches WHERE ended_at < now() - CAST(:age AS interval)
        ORDER BY ended_at LIMIT :num_rows FOR UPDATE SKIP LOCKED
    )
    """
)
# Those of archived tenants go whatever their age: one may have been stored as its tenant ended.
_OLD_RESPONSES = text(
    """
    DELETE FROM responses WHERE id IN (
        SELECT id FROM responses WHERE created_at < now() - CAST(:age AS interval)
        ORDER BY created_at LIMIT :num_rows FOR UPDATE SKIP LOCKED
    )
    """
)
_RESPONSES_OF_ARCHIVED = text(
    """
    DELETE FROM responses WHERE id IN (
        SELECT r.id FROM responses r JOIN tenants t ON t.id = r.tenant_id
        WHERE t.archived_at IS NOT NULL
        LIMIT :num_rows FOR UPDATE OF r SKIP LOCKED
    )
    """
)
# From an index alone.
_TENANTS_WITH_MANY = text(
    """
    SELECT tenant_id FROM responses GROUP BY tenant_id
    HAVING sum(num_bytes) > :max_bytes OR count(*) > :max_rows
    """
)
_OLD_ANSWERS = text(
    """
    UPDATE idempotency SET answer = NULL, content_type = '' WHERE (key_id, idempotency_key) IN (
        SELECT key_id, idempotency_key FROM idempotency
        WHERE answer IS NOT NULL AND expires_at <= now() + CAST(:left AS interval)
        LIMIT :num_rows FOR UPDATE SKIP LOCKED
    )
    """
)
# The length of what is stored apart is known without reading it.
_TENANTS_ABOVE = text(
    """
    SELECT tenant_id FROM idempotency WHERE answer IS NOT NULL
    GROUP BY tenant_id HAVING sum(octet_length(answer)) > :max_bytes
    """
)
_ANSWERS_ABOVE = text(
    """
    WITH counted AS MATERIALIZED (
        SELECT key_id, idempotency_key, sum(octet_length(answer)) OVER (
            ORDER BY expires_at DESC, key_id, idempotency_key
        ) AS with_newer_bytes
        FROM idempotency WHERE tenant_id = :tenant_id AND answer IS NOT NULL
    ), above AS MATERIALIZED (
        SELECT key_id, idempotency_key FROM counted WHERE with_newer_bytes > :max_bytes
        LIMIT :num_rows
    )
    UPDATE idempotency SET answer = NULL, content_type = '' FROM above
    WHERE idempotency.key_id = above.key_id
    AND idempotency.idempotency_key = above.idempotency_key
    """
)


class Retention:
    """Let go of what is older, or more, than is kept."""

    def __init__(
        self,
        database: Database,
        *,
        event_days: int,
        answer_hours: int,
        answer_bytes: int,
        batch_days: int,
        response_days: int,
        responses: int,
        response_bytes: int,
        num_rows: int = _ROWS,
    ) -> None:
        """`answer_bytes`, `responses` and `response_bytes` are a tenant's.

        `num_rows` is how many a transaction changes at most.
        """
        self._database = database
        self._event_age = timedelta(days=event_days)
        # Of the time of a record, what is left of it when its answer goes.
        self._record_left = timedelta(seconds=KEEP_S) - timedelta(hours=answer_hours)
        self._answer_bytes = answer_bytes
        self._batch_age = timedelta(days=batch_days)
        self._response_age = timedelta(days=response_days)
        self._responses, self._response_bytes = responses, response_bytes
        self._num_rows = num_rows

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Do it again and again while the block runs."""
        async with AsyncExitStack() as stack:
            for name, work, interval_s in (
                ("letting go of kept answers", self.answers, ANSWERS_EVERY_S),
                ("letting go of events of limits", self.events, EVENTS_EVERY_S),
                ("letting go of ended batches", self.batches, BATCHES_EVERY_S),
                ("letting go of stored responses", self.responses, RESPONSES_EVERY_S),
            ):
                await stack.enter_async_context(
                    Background(name, work, interval_s=interval_s, jitter=JITTER)
                )
            yield

    async def events(self) -> int:
        """Delete events that are too old; return how many. Raises: `StoreUnavailable`."""
        return await self._all(_OLD_EVENTS, age=self._event_age)

    async def batches(self) -> int:
        """Delete batches that ended too long ago; return how many. Raises: `StoreUnavailable`."""
        return await self._all(_OLD_BATCHES, age=self._batch_age)

    async def responses(self) -> int:
        """Delete stored responses that are too old or too many; return how many.

        Raises: `StoreUnavailable`.
        """
        num_deleted = await self._all(_OLD_RESPONSES, age=self._response_age)
        num_deleted += await self._all(_RESPONSES_OF_ARCHIVED)
        bounds = {"max_rows": self._responses, "max_bytes": self._response_bytes}
        async with self._database.platform(Purpose.LEDGER) as connection:
            if not await connection.scalar(_MINE_ALONE):
                return num_deleted
            found = (await connection.scalars(_TENANTS_WITH_MANY, bounds)).all()
        for tenant_id in found:
            num_deleted += await self._all(RESPONSES_ABOVE, tenant_id=tenant_id, **bounds)
        return num_deleted

    async def answers(self) -> int:
        """Drop answers that are too old or too many; return how many.

        Raises: `StoreUnavailable`.
        """
        num_dropped = await self._all(_OLD_ANSWERS, left=self._record_left)
        async with self._database.platform(Purpose.LEDGER) as connection:
            if not await connection.scalar(_MINE_ALONE):
                return num_dropped
            found = await connection.scalars(_TENANTS_ABOVE, {"max_bytes": self._answer_bytes})
            above = found.all()
        for tenant_id in above:
            num_dropped += await self._all(
                _ANSWERS_ABOVE, tenant_id=tenant_id, max_bytes=self._answer_bytes
            )
        return num_dropped

    async def _all(self, statement: Any, **given: object) -> int:
        """Repeat a statement until it finds less than a batch, a transaction each time."""
        num_rows = 0
        while True:
            async with self._database.platform(Purpose.LEDGER) as connection:
                if not await connection.scalar(_MINE_ALONE):
                    return num_rows
                done = await connection.execute(statement, {**given, "num_rows": self._num_rows})
            num_rows += done.rowcount
            if done.rowcount < self._num_rows:
                return num_rows
