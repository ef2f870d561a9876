"""Transactions, and as whom they run.

The server logs in as a role that owns nothing and may do nothing by itself (see `logins`; where one
URL serves for all, its user is the owner of the tables too). Every transaction steps down first,
for its own length only, with the effect of `SET LOCAL ROLE`:

- `tenant(id)` to `sluice_app`, which has no BYPASSRLS, with `sluice.tenant_id` set: row-level
  security shows it that tenant alone, whatever the statement forgot to say;
- `platform()` to `sluice_platform`, for admins, the lookup of keys and background work.

Each takes a connection of what it is for (`Purpose`, see `pools`); what names no purpose is for
settings.

A transaction commits when its block ends and rolls back on an exception. To step down is nothing
that takes a server time, so one that has not done so in `ANSWER_S`, a connection's opening and the
wait for one included, is away, however long what is asked next may take. Errors that say how the
server is (away, starting, full, too slow: `sql_faults` has the table) become `StoreUnavailable`;
errors of a statement pass as they are.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import asyncpg
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.errors import StoreUnavailable
from gateway.store.pools import RULES, PoolRules, Purpose, open_pool
from gateway.store.sql_faults import SILENCE, SILENT, fault_of, unavailable

logger = logging.getLogger(__name__)

APP_ROLE, PLATFORM_ROLE = "sluice_app", "sluice_platform"

ANSWER_S = 7.0
_ASK_AGAIN_S = 0.2
_PORT = re.compile(r":\d+$", re.ASCII)

# One round trip for role and tenant; the third argument makes both local to the transaction.
STEP_DOWN = text(
    "SELECT set_config('role', :role, true), set_config('sluice.tenant_id', :tenant_id, true)"
)


class Database:
    """Hold the pools of connections to one PostgreSQL database."""

    def __init__(
        self, url: str, rules: Mapping[Purpose, PoolRules] = RULES, *, answer_s: float = ANSWER_S
    ) -> None:
        dsn = plain_url(url)
        self._answer_s = answer_s
        self._pools = {purpose: open_pool(dsn, purpose, rules[purpose]) for purpose in Purpose}

    @asynccontextmanager
    async def as_itself(self) -> AsyncIterator[AsyncConnection]:
        """Open a transaction as the URL's own user, who migrates where it is the owner."""
        async with self._begun(Purpose.LEDGER) as connection:
            yield connection

    @asynccontextmanager
    async def platform(self, purpose: Purpose = Purpose.SETTINGS) -> AsyncIterator[AsyncConnection]:
        """Open a transaction that sees every tenant. Raises: `StoreUnavailable`."""
        async with self._begun(purpose, PLATFORM_ROLE) as connection:
            yield connection

    @asynccontextmanager
    async def snapshot(self, purpose: Purpose) -> AsyncIterator[AsyncConnection]:
        """Open a transaction as `platform`, whose queries all see the same moment."""
        async with self._begun(purpose, PLATFORM_ROLE, is_snapshot=True) as connection:
            yield connection

    @asynccontextmanager
    async def tenant(
        self, tenant_id: UUID, purpose: Purpose = Purpose.SETTINGS
    ) -> AsyncIterator[AsyncConnection]:
        """Open a transaction that sees one tenant. Raises: `StoreUnavailable`."""
        async with self._begun(purpose, APP_ROLE, str(tenant_id)) as connection:
            yield connection

    async def close(self) -> None:
        """Close every connection."""
        for pool in self._pools.values():
            await pool.dispose()

    @asynccontextmanager
    async def _begun(
        self,
        purpose: Purpose,
        role: str | None = None,
        tenant_id: str = "",
        *,
        is_snapshot: bool = False,
    ) -> AsyncIterator[AsyncConnection]:
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(self._answer_s):
                    connection = await stack.enter_async_context(self._pools[purpose].connect())
                    if is_snapshot:
                        # Until it goes back to its pool.
                        await connection.execution_options(isolation_level="REPEATABLE READ")
                    await stack.enter_async_context(connection.begin())
                    if role is not None:
                        await connection.execute(STEP_DOWN, {"role": role, "tenant_id": tenant_id})
                yield connection
        except (DBAPIError, asyncpg.PostgresError, *SILENCE) as exc:
            fault = fault_of(exc)
            if fault is None:
                raise
            if fault.is_elsewhere:
                await self.close()
            raise unavailable(exc, fault) from exc


def plain_url(url: str) -> str:
    """Return a URL as libpq writes it: without SQLAlchemy's driver.

    Raises: `ValueError`: it is no PostgreSQL URL.
    """
    scheme, _, rest = url.partition("://")
    if scheme.partition("+")[0] not in ("postgresql", "postgres"):
        raise ValueError("it must begin with postgresql://")
    return f"postgresql://{rest}"


def database_place(url: str) -> str:
    """Return the host and port of a URL, or its directory of sockets; of many, all."""
    parts = urlsplit(url)
    place = parts.netloc.rpartition("@")[2]
    if not place:
        return parse_qs(parts.query).get("host", ["localhost"])[0]
    return ",".join(one if _PORT.search(one) else f"{one}:5432" for one in place.split(","))


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
            async with database.as_itself():
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
