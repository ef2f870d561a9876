"""The statements that move batches on; see `batch_steps`.

A step names the state that it leaves, so of several gateways one takes it. Where a step takes a
while (to validate, to finalise), the batch is leased: nobody else is given it while that lasts,
and after it somebody is, whatever became of the first. Both then do the same and do it once: items
are overwritten with what they were, files are seen with the end of the batch, and the state is
left by one of them.

One batch of a tenant at a time is validated, and one finalised, whatever gateways there are: the
others of its wait, and nobody else. What a gateway has left to others, `:left`, it passes over
until one of these has it. Tenants take turns: of those that a gateway has served before, `:served`,
whose turn is longest ago is next. Of one's, what was tried comes after what was not.

Whoever locks items and their batch locks the items first, as storing results does.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import text

from gateway.store.batch_tables import batches

# By their names: with `*` a column that a later revision adds would change what is prepared here.
_COLUMNS: Final = ", ".join(f"batches.{column.name}" for column in batches.c)
# What each step would find, with what other gateways have already: they may be done by then.
DUE: Final = text(
    """
    SELECT
        coalesce(bool_or(state = 'validating' AND expires_at > clock_timestamp()
            AND is_free), false) AS validate,
        coalesce(bool_or(state = 'validating' AND expires_at <= clock_timestamp()
            OR num_over < num_items AND (state = 'cancelling'
                OR state = 'in_progress' AND expires_at <= clock_timestamp())), false) AS drop,
        coalesce(bool_or(state IN ('in_progress', 'cancelling', 'finalizing')
            AND num_over = num_items AND is_free), false) AS finalize
    FROM (
        SELECT state, expires_at, num_items, num_done + num_failed + num_dropped AS num_over,
            lease_until IS NULL OR lease_until < clock_timestamp() AS is_free
        FROM batches WHERE ended_at IS NULL
    ) AS open
    """
)
TO_VALIDATE: Final = text(
    """
    WITH ranked AS (
        SELECT id, row_number() OVER (
            PARTITION BY tenant_id
            ORDER BY coalesce(lease_until > now(), false) DESC, lease_until NULLS FIRST,
                created_at, id
        ) AS nth
        FROM batches WHERE ended_at IS NULL AND state = 'validating'
            AND expires_at > clock_timestamp()
            AND (id <> ALL(CAST(:left AS uuid[])) OR lease_until > now())
    ),
    free AS MATERIALIZED (
        SELECT batches.id FROM batches JOIN ranked USING (id)
        WHERE nth = 1 AND ended_at IS NULL AND state = 'validating'
            AND expires_at > clock_timestamp()
            AND (lease_until IS NULL OR lease_until < clock_timestamp())
        ORDER BY array_position(CAST(:served AS uuid[]), tenant_id) NULLS FIRST,
            lease_until NULLS FIRST, created_at, batches.id
        LIMIT :limit FOR UPDATE OF batches SKIP LOCKED
    )
    UPDATE batches SET
        lease_until = clock_timestamp() + make_interval(secs => :lease_s)
    FROM free WHERE batches.id = free.id RETURNING batches.*
    """.replace("batches.*", _COLUMNS)
)
# One that is cancelled keeps that state to its end.
TO_FINALIZE: Final = text(
    """
    WITH ranked AS (
        SELECT id, row_number() OVER (
            PARTITION BY tenant_id
            ORDER BY coalesce(lease_until > now(), false) DESC, lease_until NULLS FIRST,
                created_at, id
        ) AS nth
        FROM batches WHERE ended_at IS NULL AND state IN ('in_progress', 'cancelling', 'finalizing')
            AND num_done + num_failed + num_dropped = num_items
    ),
    free AS MATERIALIZED (
        SELECT batches.id FROM batches JOIN ranked USING (id)
        WHERE nth = 1 AND ended_at IS NULL AND state IN ('in_progress', 'cancelling', 'finalizing')
            AND num_done + num_failed + num_dropped = num_items
            AND (lease_until IS NULL OR lease_until < clock_timestamp())
        ORDER BY array_position(CAST(:served AS uuid[]), tenant_id) NULLS FIRST,
            lease_until NULLS FIRST, created_at, batches.id
        LIMIT :limit FOR UPDATE OF batches SKIP LOCKED
    )
    UPDATE batches SET
        state = CASE WHEN state = 'in_progress' THEN 'finalizing' ELSE state END,
        finalizing_at = coalesce(finalizing_at, clock_timestamp()), paused_for = NULL,
        lease_until = clock_timestamp() + make_interval(secs => :lease_s)
    FROM free WHERE batches.id = free.id RETURNING batches.*
    """.replace("batches.*", _COLUMNS)
)
HOLD: Final = text(
    """
    UPDATE batches SET lease_until = clock_timestamp() + make_interval(secs => :lease_s)
    WHERE id = :batch_id AND ended_at IS NULL
        AND (state = 'validating' OR finalizing_at IS NOT NULL)
    """
)
# Who adds items, and who cancels: neither while the other does.
STILL_VALIDATING: Final = text(
    "SELECT tenant_id FROM batches WHERE id = :batch_id AND state = 'validating' FOR SHARE"
)
ADD_ITEMS: Final = text(
    """
    INSERT INTO batch_items
        (batch_id, tenant_id, line, custom_id, place, offset_bytes, size_bytes, enqueued_tokens)
    SELECT :batch_id, :tenant_id, * FROM unnest(
        CAST(:lines AS int[]), CAST(:custom_ids AS text[]), CAST(:places AS int[]),
        CAST(:offsets AS bigint[]), CAST(:sizes AS int[]), CAST(:tokens AS int[])
    )
    ON CONFLICT (batch_id, line) DO UPDATE SET
        custom_id = excluded.custom_id, place = excluded.place,
        offset_bytes = excluded.offset_bytes, size_bytes = excluded.size_bytes,
        enqueued_tokens = excluded.enqueued_tokens
    """
)
LEAVE_VALIDATING: Final = text(
    "SELECT tenant_id FROM batches WHERE id = :batch_id AND state = 'validating' FOR UPDATE"
)
# Two batches of a tenant that start at once would each find room for itself.
ONE_START_A_TENANT: Final = text(
    "SELECT pg_advisory_xact_lock(hashtextextended(CAST(CAST(:tenant_id AS uuid) AS text), 8030))"
)
WAITING: Final = text(
    """
    SELECT coalesce(sum(num_items - num_done - num_failed - num_dropped), 0)::bigint AS num_items,
        coalesce(sum(enqueued_tokens), 0)::bigint AS tokens
    FROM batches WHERE tenant_id = :tenant_id AND ended_at IS NULL
    """
)
OF_ITEMS: Final = text(
    """
    SELECT count(*) AS num_items, coalesce(sum(enqueued_tokens), 0)::bigint AS tokens
    FROM batch_items WHERE batch_id = :batch_id
    """
)
NEVER_VALIDATED: Final = text(
    """
    UPDATE batches SET state = 'expired', ended_at = clock_timestamp(), lease_until = NULL
    WHERE ended_at IS NULL AND state = 'validating' AND expires_at <= clock_timestamp()
    RETURNING id
    """
)
# What runs has a while to end; after it, it is dropped too, and its run has lost it. Until then a
# batch that has nothing else is left out: it would take the place of one that has.
TO_DROP: Final = text(
    """
    SELECT id, fate, is_late FROM (
        SELECT *, row_number() OVER (PARTITION BY tenant_id ORDER BY created_at, id) AS nth
        FROM (
            SELECT *, clock_timestamp() > since + make_interval(secs => :grace_s) AS is_late
            FROM (
                SELECT id, tenant_id, created_at,
                    CASE WHEN state = 'cancelling' THEN 'cancelled' ELSE 'expired' END AS fate,
                    CASE WHEN state = 'cancelling' THEN cancelling_at ELSE expires_at END AS since
                FROM batches
                WHERE ended_at IS NULL AND num_done + num_failed + num_dropped < num_items
                    AND (state = 'cancelling'
                        OR (state = 'in_progress' AND expires_at <= clock_timestamp()))
            ) AS stopped
        ) AS told
        WHERE is_late OR EXISTS (
            SELECT FROM batch_items WHERE batch_id = told.id AND batch_items.state = 'pending'
        )
    ) AS ranked
    ORDER BY nth, since LIMIT :limit
    """
)
# A partial index is used for a state that the statement spells out, so there are two.
_DROP: Final = """
    WITH gone AS MATERIALIZED (
        SELECT batch_id, line FROM batch_items
        WHERE batch_id = :batch_id AND state = 'pending'
        ORDER BY place, line LIMIT :limit FOR UPDATE SKIP LOCKED
    ),
    ended AS (
        UPDATE batch_items AS item SET state = :fate, worker_id = NULL, lease_until = NULL
        FROM gone WHERE item.batch_id = gone.batch_id AND item.line = gone.line
        RETURNING item.enqueued_tokens
    ),
    told AS (
        UPDATE batches SET num_dropped = num_dropped + sums.num_items,
            enqueued_tokens = batches.enqueued_tokens - sums.tokens
        FROM (SELECT count(*) AS num_items, sum(enqueued_tokens) AS tokens FROM ended) AS sums
        WHERE batches.id = :batch_id AND sums.num_items > 0
    )
    SELECT count(*) FROM ended
"""
DROP_PENDING: Final = text(_DROP)
DROP_RUNNING: Final = text(_DROP.replace("'pending'", "'running'"))
FINISH: Final = text(
    """
    UPDATE batches SET
        state = CASE WHEN cancelling_at IS NOT NULL THEN 'cancelled'
            WHEN num_dropped > 0 THEN 'expired' ELSE 'completed' END,
        output_file_id = :output_file_id, error_file_id = :error_file_id,
        ended_at = clock_timestamp(), lease_until = NULL, enqueued_tokens = 0
    WHERE id = :batch_id AND ended_at IS NULL AND finalizing_at IS NOT NULL
    """
)
# At most so many, and about so many bytes: what is large is stored apart, its size is known. Joined
# by both columns, as claims are and for the same reason.
RESULTS: Final = text(
    """
    SELECT line, generation, is_error, body FROM (
        SELECT batch_id, line, is_error, body, sum(octet_length(body)) OVER (ORDER BY line)
            - octet_length(body) AS bytes_before
        FROM (
            SELECT batch_id, line, is_error, body FROM batch_results
            WHERE batch_id = :batch_id AND line > :after AND is_error = :is_error
            ORDER BY line LIMIT :limit
        ) AS next
    ) AS part
    JOIN batch_items AS item USING (batch_id, line)
    WHERE bytes_before < :max_bytes
    ORDER BY line
    """
)
DROPPED: Final = text(
    """
    SELECT line, custom_id, state = 'expired' AS is_expired FROM batch_items
    WHERE batch_id = :batch_id AND line > :after AND state IN ('cancelled', 'expired')
    ORDER BY line LIMIT :limit
    """
)
