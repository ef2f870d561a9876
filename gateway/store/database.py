"""Transactions, and as whom they run.

One connection URL serves three roles: its own user owns the tables and runs the migrations;
every other transaction steps down first, for its own length only, with the effect of
`SET LOCAL ROLE`:

- `tenant(id)` to `sluice_app`, which has no BYPASSRLS, with `sluice.tenant_id` set: row-level
  security shows it that tenant alone, whatever the statement forgot to say;
- `platform()` to `sluice_platform`, for admins, the lookup of keys and background work.

A transaction commits when its block ends and rolls back on an exception. Errors that say how the
server is (away, starting, full, too slow: `sql_faults` has the table) become `StoreUnavailable`;
errors of a statement pass as they are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import asyncpg
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from gateway.errors import StoreUnavailable
from gateway.store.sql_faults import SILENCE, SILENT, fault_of, unavailable

logger = logging.getLogger(__name__)

APP_ROLE, PLATFORM_ROLE = "sluice_app", "sluice_platform"

_CONNECT_TIMEOUT_S = 5.0
_COMMAND_TIMEOUT_S = 30.0
_ASK_AGAIN_S = 0.2
_POOL_SIZE, _POOL_OVERFLOW, _POOL_TIMEOUT_S = 5, 10, 5.0

# One round trip for role and tenant; the third argument makes both local to the transaction.
_STEP_DOWN = text(
    "SELECT set_config('role', :role, true), set_config('sluice.tenant_id', :tenant_id, true)"
)


class Database:
    """Hold the pool of connections to one PostgreSQL database."""

    def __init__(self, url: str) -> None:
        dsn = plain_url(url)

        async def connect() -> asyncpg.Connection:
            return await asyncpg.connect(
                dsn,
                timeout=_CONNECT_TIMEOUT_S,
                command_timeout=_COMMAND_TIMEOUT_S,
                server_settings={"application_name": "sluice"},
            )

        # A creator, not a URL: asyncpg understands all of libpq's options (sslmode, service,
        # several hosts) where SQLAlchemy's translation knows some.
        self._engine = create_async_engine(
            "postgresql+asyncpg://",
            async_creator=connect,
            pool_size=_POOL_SIZE,
            max_overflow=_POOL_OVERFLOW,
            pool_timeout=_POOL_TIMEOUT_S,
            pool_pre_ping=True,
            hide_parameters=True,  # an error's text goes to the log, a MAC must not
        )

    @asynccontextmanager
    async def owner(self) -> AsyncIterator[AsyncConnection]:
        """Open a transaction as the URL's own user; for migrations alone."""
        try:
            async with self._engine.begin() as connection:
                yield connection
        except (DBAPIError, asyncpg.PostgresError, *SILENCE) as exc:
            fault = fault_of(exc)
            if fault is None:
                raise
            if fault.is_elsewhere:
                await self._engine.dispose()
            raise unavailable(exc, fault) from exc

    @asynccontextmanager
    async def platform(self) -> AsyncIterator[AsyncConnection]:
        """Open a transaction that sees every tenant. Raises: `StoreUnavailable`."""
        async with self._stepped_down(PLATFORM_ROLE, "") as connection:
            yield connection

    @asynccontextmanager
    async def tenant(self, tenant_id: UUID) -> AsyncIterator[AsyncConnection]:
        """Open a transaction that sees one tenant. Raises: `StoreUnavailable`."""
        async with self._stepped_down(APP_ROLE, str(tenant_id)) as connection:
            yield connection

    async def close(self) -> None:
        """Close every connection."""
        await self._engine.dispose()

    @asynccontextmanager
    async def _stepped_down(self, role: str, tenant_id: str) -> AsyncIterator[AsyncConnection]:
        async with self.owner() as connection:
            await connection.execute(_STEP_DOWN, {"role": role, "tenant_id": tenant_id})
            yield connection


def plain_url(url: str) -> str:
    """Return a URL as libpq writes it: without SQLAlchemy's driver.

    Raises: `ValueError`: it is no PostgreSQL URL.
    """
    scheme, _, rest = url.partition("://")
    if scheme.partition("+")[0] not in ("postgresql", "postgres"):
        raise ValueError("it must begin with postgresql://")
    return f"postgresql://{rest}"


async def connect_patiently(
    url: str, *, silent_s: float, told_s: float, tell_every_s: float = 5.0
) -> Database:
    """Open a database, waiting for one that is still starting, or full; say so meanwhile.

    A server that says nothing may not be there at all and is waited for `silent_s`; one that says
    what is the matter with it is, for `told_s`.
    Raises: `StoreUnavailable`: it was not to be had in time, or never will be as it is asked.
    """
    database = Database(url)
    clock = asyncio.get_running_loop().time
    began_s = tell_s = clock()
    while True:
        try:
            async with database.owner():
                return database
        except StoreUnavailable as exc:
            fault = fault_of(exc.__cause__ or exc) or SILENT
            patience_s = silent_s if fault is SILENT else told_s
            if not fault.is_passing or clock() - began_s > patience_s:
                await database.close()
                raise
            if clock() >= tell_s:
                tell_s = clock() + tell_every_s
                logger.warning("the start waits for the database: %s", exc.detail)
            await asyncio.sleep(_ASK_AGAIN_S)
