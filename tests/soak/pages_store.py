"""A store as large as the pages are promised for, filled by SQL alone.

Tenants are of very different sizes, as they are in service: one has a tenth of the ledger and the
sums of fifty keys, and most have a few requests a day. The log of changes is a true chain.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID, uuid4

import asyncpg

from gateway.domain.admin import Actor, AuditEntry
from gateway.store import Store
from gateway.store.audit_chain import AuditChain

LARGE_TENANT: Final = "acme"
_DAYS: Final = 30
_LARGE_KEYS: Final = 50
_ANN: Final = Actor("ann@example.org", "owner", "127.0.0.1", "req_" + "0" * 32)
_SUMS: Final = (
    "input_tokens", "cached_tokens", "output_tokens", "nano_usd", "requests",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Size:
    """Say how much of everything there is to be."""

    tenants: int = 10_000
    ledger_rows: int = 1_000_000
    sums: int = 5_000_000
    records: int = 200_000
    batches: int = 20_000
    changes: int = 40_000

    def scaled(self, scale: float) -> Size:
        """Return the same store, smaller."""
        return Size(*(max(200, round(getattr(self, name) * scale)) for name in self.__slots__))


async def fill_store(store: Store, database: asyncpg.Pool, size: Size) -> dict[str, float]:
    """Fill a store that has had its first start; return how long each part took, in seconds.

    `database` is a superuser's: rows are written without their foreign keys being looked up.
    """
    organisation = await store.organisations.default()
    took_s: dict[str, float] = {}
    async with database.acquire() as connection:
        await connection.execute("SET session_replication_role = replica")
        await connection.execute("SET maintenance_work_mem = '256MB'")
        for name, fill in (
            ("tenants", _fill_tenants),
            ("ledger", _fill_ledger),
            ("sums", _fill_sums),
            ("records", _fill_records),
            ("batches", _fill_batches),
        ):
            began_s = time.monotonic()
            await fill(connection, organisation.id, size)
            took_s[name] = time.monotonic() - began_s
        began_s = time.monotonic()
        await _fill_changes(store, connection, organisation.id, size)
        took_s["changes"] = time.monotonic() - began_s
        began_s = time.monotonic()
        await connection.execute("RESET session_replication_role")
        await connection.execute("VACUUM ANALYZE")
        took_s["analyze"] = time.monotonic() - began_s
    return took_s


async def _fill_tenants(connection: Any, organisation_id: UUID, size: Size) -> None:
    """Make plans, orgs, tenants with a key each, and the large one's many."""
    await connection.execute(
        "INSERT INTO plans (id, organisation_id, name) "
        "SELECT gen_random_uuid(), $1, name "
        "FROM unnest(ARRAY['free', 'standard', 'priority']) name",
        organisation_id,
    )
    await connection.execute(
        "INSERT INTO quotas (scope_kind, scope_id, is_override, rpm, input_tpm, daily_tokens) "
        "SELECT 'plan', id, false, 600, 400000, 2000000 FROM plans"
    )
    await connection.execute(
        "INSERT INTO orgs (id, organisation_id, name) "
        "SELECT gen_random_uuid(), $1, 'org-' || n FROM generate_series(1, 200) n",
        organisation_id,
    )
    await connection.execute(
        "INSERT INTO tenants (id, organisation_id, name, weight, plan_id, org_id, ttft_ms) "
        "SELECT gen_random_uuid(), $1, 'tenant-' || lpad(n::text, 5, '0'), 1 + n % 4, "
        "(SELECT id FROM plans ORDER BY name OFFSET n % 3 LIMIT 1), "
        "CASE WHEN n % 5 = 0 THEN (SELECT id FROM orgs ORDER BY name OFFSET n % 200 LIMIT 1) END, "
        "CASE WHEN n % 2 = 0 THEN 500 END FROM generate_series(3, $2::int) n",
        organisation_id,
        size.tenants,
    )
    await connection.execute(
        "INSERT INTO keys (id, tenant_id, kid, name, last_used_at) "
        "SELECT gen_random_uuid(), id, substr(md5(id::text), 1, 16), 'production', now() "
        "FROM tenants WHERE name LIKE 'tenant-%'"
    )
    await connection.execute(
        "INSERT INTO keys (id, tenant_id, kid, name) "
        "SELECT gen_random_uuid(), id, substr(md5(id::text || n), 1, 16), 'service-' || n "
        "FROM tenants, generate_series(2, $2::int) n WHERE name = $1",
        LARGE_TENANT,
        _LARGE_KEYS,
    )
    await connection.execute(
        "INSERT INTO quotas (scope_kind, scope_id, is_override, tenant_id, rpm, monthly_tokens) "
        "SELECT 'tenant', id, false, id, 900, 50000000 FROM tenants "
        "ON CONFLICT DO NOTHING"
    )
    # What rows are drawn from: a number for each key, every tenth draw one of the large tenant's.
    await connection.execute(
        "CREATE TEMP TABLE drawn AS SELECT row_number() OVER (ORDER BY k.kid) - 1 AS place, "
        "k.id AS key_id, t.id AS tenant_id, t.name = $1 AS is_large "
        "FROM keys k JOIN tenants t ON t.id = k.tenant_id",
        LARGE_TENANT,
    )
    await connection.execute("CREATE INDEX ON drawn (place)")
    await connection.execute(
        "CREATE TEMP TABLE large AS SELECT row_number() OVER () - 1 AS place, key_id, tenant_id "
        "FROM drawn WHERE is_large"
    )
    await connection.execute("ANALYZE drawn")


async def _fill_ledger(connection: Any, organisation_id: UUID, size: Size) -> None:
    """Write the rows, a third of them of the last day, in the order of their times."""
    for day in range(_DAYS, -1, -1):
        await connection.execute(
            "SELECT make_ledger_day(day) FROM (SELECT current_date - $1::int AS day) wanted "
            "WHERE to_regclass('usage_events_' || to_char(day, 'YYYYMMDD')) IS NULL",
            day,
        )
    await connection.execute(
        "INSERT INTO usage_events SELECT gen_random_uuid(), at, at + interval '2 seconds', $1, "
        "coalesce(l.tenant_id, d.tenant_id), coalesce(l.key_id, d.key_id), "
        "CASE WHEN n % 3 = 0 THEN 'qwen3-0.6b' ELSE 'sluice-demo' END, 'default', false, "
        "200 + n % 3000, n % 200, 20 + n % 400, 100000, NULL, 'completed', 240 "
        "FROM (SELECT n, now() - CASE WHEN n % 3 = 0 "
        "THEN interval '1 day' * (n::float / $2) ELSE interval '30 days' * (n::float / $2) END "
        "AS at FROM generate_series(1, $2::int) n) rows "
        "LEFT JOIN large l ON n % 10 = 0 AND l.place = (n / 10) % (SELECT count(*) FROM large) "
        "JOIN drawn d ON d.place = (n * 7919::bigint) % (SELECT count(*) FROM drawn) "
        "ORDER BY at",
        organisation_id,
        size.ledger_rows,
    )


async def _fill_sums(connection: Any, organisation_id: UUID, size: Size) -> None:
    """Write sums of as many hours as there are to be: all of the large tenant's, of others some."""
    indexes = await connection.fetch(
        "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = 'usage_hourly' "
        "AND indexname <> 'usage_hourly_pkey' AND indexname <> 'pk_usage_hourly'"
    )
    [primary] = await connection.fetch(
        "SELECT conname, pg_get_constraintdef(oid) AS definition FROM pg_constraint "
        "WHERE conrelid = 'usage_hourly'::regclass AND contype = 'p'"
    )
    await connection.execute(f"ALTER TABLE usage_hourly DROP CONSTRAINT {primary['conname']}")
    for index in indexes:
        await connection.execute(f"DROP INDEX {index['indexname']}")
    hours = _DAYS * 24
    whose = "organisation_id, tenant_id, key_id, model, tier, is_batch"
    columns = f"hour, {whose}"
    values = "2000, 500, 300, 320000, 2"
    # All hours, keys and both models of the large tenant.
    made = await connection.execute(
        f"INSERT INTO usage_hourly ({columns}, {', '.join(_SUMS)}) "
        "SELECT date_trunc('hour', now()) - h * interval '1 hour', $1, tenant_id, key_id, model, "
        f"'default', false, {values} FROM large, unnest(ARRAY['sluice-demo', 'qwen3-0.6b']) model, "
        "generate_series(0, $2::int - 1) h WHERE large.place < $3",
        organisation_id,
        hours,
        max(1, round(_LARGE_KEYS * min(1.0, size.sums / 5_000_000))),
    )
    left = max(0, size.sums - int(made.split()[-1]))
    await connection.execute(
        f"INSERT INTO usage_hourly ({columns}, {', '.join(_SUMS)}) "
        "SELECT date_trunc('hour', now()) - h * interval '1 hour', $1, tenant_id, key_id, "
        f"'sluice-demo', 'default', false, {values} "
        "FROM generate_series(0, $2::int - 1) h, drawn "
        # As many of them in each hour, others each time.
        "WHERE NOT is_large AND (place + h * 7919::bigint) % $3 < $4",
        organisation_id,
        hours,
        size.tenants,
        -(-left // hours),
    )
    await connection.execute(
        f"ALTER TABLE usage_hourly ADD CONSTRAINT {primary['conname']} {primary['definition']}"
    )
    for index in indexes:
        await connection.execute(index["indexdef"])
    # As triggers would have left it: of each two requests one began its hour, one was added.
    halves = ", ".join(f"sum({name}) / 2" for name in _SUMS)
    await connection.execute(
        f"INSERT INTO usage_daily (day, of_inserts, {whose}, {', '.join(_SUMS)}) "
        f"SELECT date_trunc('day', hour, 'UTC') AS day, of_inserts, {whose}, {halves} "
        "FROM usage_hourly, (VALUES (true), (false)) AS halves (of_inserts) "
        f"GROUP BY day, of_inserts, {whose}"
    )


async def _fill_records(connection: Any, organisation_id: UUID, size: Size) -> None:
    """Write a day of records of requests, one in ten of them refused."""
    for hour in range(24, -1, -1):
        await connection.execute(
            "SELECT make_record_hour(hour) "
            "FROM (SELECT now() - $1::int * interval '1 hour' AS hour) wanted "
            "WHERE to_regclass('request_records_' || "
            "to_char(hour AT TIME ZONE 'UTC', 'YYYYMMDDHH24')) IS NULL",
            hour,
        )
    await connection.execute(
        "INSERT INTO request_records SELECT gen_random_uuid(), "
        "now() - interval '1 day' * (n::float / $2), $1, coalesce(l.tenant_id, d.tenant_id), "
        "coalesce(l.key_id, d.key_id), 'sluice-demo', 'default', "
        "CASE WHEN n % 10 = 1 THEN 429 ELSE 200 END, "
        "CASE WHEN n % 10 = 1 THEN 'rate_limit_exceeded' ELSE '' END, "
        "'completed', CASE WHEN n % 10 = 1 THEN 'own_limit' ELSE 'compute' END, "
        "CASE WHEN n % 50 = 2 THEN ARRAY['ttft'] ELSE ARRAY[]::text[] END, false, false, 2.4, 0.3, "
        "96, $3::jsonb FROM generate_series($2::int, 1, -1) n "
        "LEFT JOIN large l ON n % 10 = 0 AND l.place = (n / 10) % (SELECT count(*) FROM large) "
        "JOIN drawn d ON d.place = (n * 7919::bigint) % (SELECT count(*) FROM drawn)",
        organisation_id,
        size.records,
        _DETAILS,
    )


async def _fill_batches(connection: Any, _: UUID, size: Size) -> None:
    """Write batches of the last month, a few of which have not ended."""
    await connection.execute(
        "INSERT INTO batches (id, tenant_id, key_id, endpoint, state, input_file_id, "
        "completion_window_s, num_items, num_done, enqueued_tokens, cost_nano_usd, full_nano_usd, "
        "created_at, expires_at, ended_at) "
        "SELECT gen_random_uuid(), d.tenant_id, d.key_id, '/v1/chat/completions', "
        "CASE WHEN b % 100 = 0 THEN 'in_progress' ELSE 'completed' END, gen_random_uuid(), 86400, "
        "1000, 1000, 0, 500000000, 1000000000, at, at + interval '1 day', "
        "CASE WHEN b % 100 <> 0 THEN at + interval '1 hour' END "
        "FROM (SELECT b, now() - interval '29 days' * (b::float / $1) AS at "
        "FROM generate_series(1, $1::int) b) made "
        "JOIN drawn d ON d.place = (b * 7919::bigint) % (SELECT count(*) FROM drawn)",
        size.batches,
    )


async def _fill_changes(store: Store, connection: Any, organisation_id: UUID, size: Size) -> None:
    """Append what making the tenants and their keys would have left in the log."""
    rows = await connection.fetch(
        "SELECT id, name FROM tenants WHERE name LIKE 'tenant-%' ORDER BY name"
    )

    def entries() -> Iterator[AuditEntry]:
        for number in range(size.changes):
            row = rows[number % len(rows)]
            yield AuditEntry(
                action=("tenant.create", "key.create")[number % 2],
                object_kind=("tenant", "key")[number % 2],
                object_id=str(uuid4()),
                organisation_id=organisation_id,
                tenant_id=row["id"],
                after={"name": row["name"], "weight": 1.0, "plan": "standard", "max_tier": "flex"},
            )

    async with store.database.platform() as own:
        await AuditChain(store.secrets).append_all(own, _ANN, list(entries()))


_DETAILS: Final = """{
    "sentence": "It computed.", "contributions": [{"cause": "compute", "seconds": 2.4}],
    "method": "POST", "route": "/v1/chat/completions", "trace_id": null, "batch_id": null,
    "is_stream": true, "num_choices": 1, "max_tokens": 512, "limit": null,
    "finish_reasons": ["stop"], "input_tokens": 812, "cached_tokens": 256, "nano_usd": 119600,
    "num_events": 96, "num_bytes": 9000, "stall_s": 0.0, "ttft_slo_s": 0.5, "tpot_slo_s": null,
    "first_token_s": 0.3, "last_token_s": 2.3,
    "phases": [{"name": "generate", "begin_s": 0.02, "end_s": 2.4, "detail": {}}],
    "remarks": [], "generations": [], "num_left_out": 0
}"""
