"""Bring a database to the newest schema, inside a running event loop.

Two releases serve one database while one takes the other's place, and a gateway of the older may
start again meanwhile. So each schema says beside it from which release on it can be used, and a
release that meets a newer one serves on it if that includes itself: it must write and read what is
there by name, as it did, which holds while nothing is taken away or made obligatory.

One transaction holds an advisory lock, so gateways that start together migrate once; all
revisions commit or none. `lock_timeout` keeps a migration from queueing behind a long
transaction with every query behind it: it gives up instead, and the start fails. A database at
head is left after one query, without loading Alembic.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

import migrations
from gateway.errors import StartupFailed, StoreUnavailable
from gateway.store.database import PLATFORM_ROLE, STEP_DOWN, Database

HEAD = "0027"
# The `HEAD` of the oldest release that serves on this schema. It is raised by a revision that takes
# something away from releases before it, which is then not to be rolled out beside them.
READABLE_FROM = "0018"

_LOCK_KEY = 7_308_325_614_571_844_467  # "sluice" read as a number, so that few others choose it
_ADVISORY_TIMEOUT_S, _DDL_TIMEOUT_S = 120, 5
_NOT_ALLOWED = "42501"
_LOOK = text(
    "SELECT to_regclass('alembic_version') IS NOT NULL, "
    "coalesce(has_table_privilege(to_regclass('alembic_version'), 'SELECT'), false), "
    "obj_description(to_regclass('alembic_version'), 'pg_class')"
)
_SAYS = "readable from "
_SAY = text(f"COMMENT ON TABLE alembic_version IS '{_SAYS}{READABLE_FROM}'")
_SAY_NOTHING = text("COMMENT ON TABLE alembic_version IS NULL")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Schema:
    """Say at which revision a database is (None: no schema yet), and which releases it serves.

    `readable_from` is the `HEAD` of the oldest of them, None where the schema does not say.
    """

    revision: str | None
    readable_from: str | None = None

    @property
    def is_current(self) -> bool:
        return self.revision == HEAD

    @property
    def is_newer(self) -> bool:
        return self.revision is not None and self.revision > HEAD

    @property
    def serves(self) -> bool:
        """Whether this release can be used on it as it is."""
        says_so = self.readable_from is not None and self.readable_from <= HEAD
        return self.is_current or (self.is_newer and says_so)


async def upgrade(database: Database) -> None:
    """Migrate up to `HEAD`, or leave a newer schema that serves this release as it is.

    Raises: `StartupFailed`, `StoreUnavailable`.
    """
    try:
        async with database.as_itself() as connection:
            schema = await schema_of(connection)
    except DBAPIError as exc:
        raise _failed(exc) from exc
    if schema.is_newer:
        said = f"the database is at {schema.revision} of a newer Sluice than this ({HEAD})"
        if not schema.serves:
            raise StartupFailed(f"{said}, which it does not serve any more: start the newer one")
        _log.warning("%s, which it still serves", said)
    if schema.serves:
        return
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
        raise StartupFailed(f"the database could not be migrated: {exc}") from exc
    # Of an older schema, which only a step down leaves behind, nothing is known.
    connection.execute(_SAY if revision == HEAD else _SAY_NOTHING)


async def schema_of(connection: AsyncConnection) -> Schema:
    """Return at which schema a database is.

    A login that serves reads it as `sluice_platform`, for the rest of the transaction.
    """
    exists, may_read, says = (await connection.execute(_LOOK)).one()
    if not exists:
        return Schema(None)
    if not may_read:
        await connection.execute(STEP_DOWN, {"role": PLATFORM_ROLE, "tenant_id": ""})
    revision: str | None = await connection.scalar(text("SELECT version_num FROM alembic_version"))
    known = says is not None and says.startswith(_SAYS)
    return Schema(revision, says.removeprefix(_SAYS) if known else None)
