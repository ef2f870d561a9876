"""One snapshot of a database: what it says of itself, and a name under which `pg_dump` reads it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import asyncpg

from gateway.errors import BackupRefused
from gateway.store.backup.manifest import Sums

_TIMEOUT_S: Final = 30.0

_HAS_SCHEMA: Final = "SELECT to_regclass('public.alembic_version') IS NOT NULL"
_REVISION: Final = "SELECT version_num FROM alembic_version"
_PEPPER_IDS: Final = "SELECT DISTINCT pepper_id FROM admin_tokens"
_ROWS: Final = (
    "SELECT count(*)::bigint AS rows, coalesce(sum(input_tokens), 0)::bigint AS input_tokens, "
    "coalesce(sum(cached_tokens), 0)::bigint AS cached_tokens, "
    "coalesce(sum(output_tokens), 0)::bigint AS output_tokens, "
    "coalesce(sum(nano_usd), 0)::numeric AS nano_usd FROM usage_events"
)
_HOURLY: Final = (
    "SELECT coalesce(sum(requests), 0)::bigint AS hourly_requests, "
    "coalesce(sum(nano_usd), 0)::numeric AS hourly_nano_usd FROM usage_hourly"
)
_HEADS: Final = "SELECT organisation_id, seq, hash FROM audit_heads"
_FILE_IDS: Final = "SELECT id FROM files WHERE is_ready"
_ROOM: Final = (
    "SELECT pg_database_size(current_database()) + (SELECT coalesce(sum(size_bytes), 0) FROM files)"
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Describe a database at one moment; `name` is good for as long as the block runs."""

    name: str
    postgres_major: int
    revision: str
    pepper_ids: frozenset[str]
    ledger: Sums
    audit_heads: dict[str, tuple[int, str]]
    file_ids: tuple[UUID, ...]
    size_bytes: int


@asynccontextmanager
async def snapshot(url: str) -> AsyncIterator[Snapshot]:
    """Hold a snapshot of a database, as a superuser, whom no policy hides a row from.

    Raises: `BackupRefused`: it has no schema, or does not let us in.
    """
    try:
        connection = await asyncpg.connect(url, timeout=_TIMEOUT_S)
    except (OSError, asyncpg.PostgresError) as exc:
        raise BackupRefused(
            f"the embedded database does not let us in ({exc}): run this as the user that "
            "started the server"
        ) from None
    try:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            yield await _read(connection)
    finally:
        await connection.close()


async def is_empty(url: str) -> bool:
    """Tell whether a database has no table of anybody's."""
    connection = await asyncpg.connect(url, timeout=_TIMEOUT_S)
    try:
        found = await connection.fetchval(
            "SELECT EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast'))"
        )
        return not found
    finally:
        await connection.close()


async def _read(connection: asyncpg.Connection) -> Snapshot:
    if not await connection.fetchval(_HAS_SCHEMA):
        raise BackupRefused("the database is empty: there is nothing to back up yet")
    rows = dict(await connection.fetchrow(_ROWS)) | dict(await connection.fetchrow(_HOURLY))
    heads = await connection.fetch(_HEADS)
    return Snapshot(
        name=await connection.fetchval("SELECT pg_export_snapshot()"),
        postgres_major=connection.get_server_version().major,
        revision=await connection.fetchval(_REVISION),
        pepper_ids=frozenset(row[0] for row in await connection.fetch(_PEPPER_IDS)),
        ledger=Sums(**{name: int(value) for name, value in rows.items()}),
        audit_heads={str(row[0]): (row[1], row[2].hex()) for row in heads},
        file_ids=tuple(row[0] for row in await connection.fetch(_FILE_IDS)),
        size_bytes=int(await connection.fetchval(_ROOM)),
    )
