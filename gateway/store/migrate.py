"""Bring a database to the newest schema, inside a running event loop.

One transaction holds an advisory lock, so gateways that start together migrate once; all
revisions commit or none. `lock_timeout` keeps a migration from queueing behind a long
transaction with every query behind it: it gives up instead, and the start fails. A database at
head is left after one query, without loading Alembic.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

import migrations
from gateway.errors import StartupFailed, StoreUnavailable
from gateway.store.database import PLATFORM_ROLE, STEP_DOWN, Database

HEAD = "0022"

_LOCK_KEY = 7_308_325_614_571_844_467  # "sluice" read as a number, so that few others choose it
_ADVISORY_TIMEOUT_S, _DDL_TIMEOUT_S = 120, 5
_NOT_ALLOWED = "42501"
_LOOK = text(
    "SELECT to_regclass('alembic_version') IS NOT NULL, "
    "coalesce(has_table_privilege(to_regclass('alembic_version'), 'SELECT'), false)"
)


async def upgrade(database: Database) -> None:
    """Migrate up to `HEAD`. Raises: `StartupFailed`, `StoreUnavailable`."""
    try:
        async with database.as_itself() as connection:
            if await revision_of(connection) == HEAD:
                return
    except DBAPIError as exc:
        raise _failed(exc) from exc
    await _run(database, "upgrade", HEAD)


async def downgrade(database: Database, revision: str) -> None:
    """Migrate down to `revision`, or to nothing (`base`). It deletes data."""
    await _run(database, "downgrade", revision)


async def take_advisory_lock(connection: AsyncConnection) -> None:
    """Be the only one who migrates or first-starts this database, to the transaction's end."""
    await connection.execute(text(f"SET LOCAL lock_timeout = '{_ADVISORY_TIMEOUT_S}s'"))
    await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})
    await connection.execute(text(f"SET LOCAL lock_timeout = '{_DDL_TIMEOUT_S}s'"))


async def _run(database: Database, direction: str, revision: str) -> None:
    try:
        async with database.as_itself() as connection:
            await take_advisory_lock(connection)
            await connection.run_sync(_migrate, direction, revision)
    except DBAPIError as exc:
        raise _failed(exc) from exc
    except StoreUnavailable as exc:
        raise StartupFailed(f"the database could not be migrated: {exc.detail}") from exc


def _failed(exc: DBAPIError) -> StartupFailed:
    said = f"the database could not be migrated: {exc.orig}"
    if getattr(exc.orig, "sqlstate", None) == _NOT_ALLOWED:
        said += (
            "; 'sluice db upgrade' does it, with the owner's SLUICE_DATABASE_OWNER_URL, which a "
            "start may be given too"
        )
    return StartupFailed(said)


def _migrate(connection: Connection, direction: str, revision: str) -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.attributes["connection"] = connection
    try:
        getattr(command, direction)(config, revision)
    except CommandError as exc:
        raise StartupFailed(
            f"the database could not be migrated: {exc}; a newer sluice may have used it"
        ) from exc


async def revision_of(connection: AsyncConnection) -> str | None:
    """Return the revision that a database is at; None where it has no schema yet.

    A login that serves reads it as `sluice_platform`, for the rest of the transaction.
    """
    exists, may_read = (await connection.execute(_LOOK)).one()
    if not exists:
        return None
    if not may_read:
        await connection.execute(STEP_DOWN, {"role": PLATFORM_ROLE, "tenant_id": ""})
    revision: str | None = await connection.scalar(text("SELECT version_num FROM alembic_version"))
    return revision
