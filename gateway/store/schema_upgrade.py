"""Bringing a database of an operator's own to this release's schema, apart from any server.

What serves then needs the login of `SLUICE_DATABASE_URL` alone, and whoever gets hold of a server's
environment has no right to change a table, policy or trigger.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.errors import StartupFailed
from gateway.settings import Settings
from gateway.store.database import Database
from gateway.store.logins import DatabaseUrls, given_urls, let_in
from gateway.store.migrate import Schema, schema_of, upgrade
from gateway.store.reach_database import owner_name, reach_database


async def schema_state(settings: Settings) -> Schema:
    """Look at the schema. Raises: `StartupFailed`: it cannot be reached, or no URL names it."""
    async with _opened(_urls(settings).owner, owner_name(settings)) as owner:
        return await _schema(owner)


async def upgrade_schema(settings: Settings) -> Schema:
    """Migrate as the owner, let the server's login in, and return what was there before.

    It may run beside servers, and more than once at a time. Raises: as `schema_state`, and where
    the owner may not do it.
    """
    urls = _urls(settings)
    async with _opened(urls.owner, owner_name(settings)) as owner:
        before = await _schema(owner)
        await upgrade(owner)
        if urls.server != urls.owner:
            async with _opened(urls.server, "SLUICE_DATABASE_URL") as server:
                await let_in(owner, server)
        return before


def _urls(settings: Settings) -> DatabaseUrls:
    urls = given_urls(settings)
    if urls is None:
        raise StartupFailed(
            "SLUICE_DATABASE_URL names no database: the one in a server's data directory is "
            "migrated by that server as it starts"
        )
    return urls


@asynccontextmanager
async def _opened(url: str, name: str) -> AsyncIterator[Database]:
    database = await reach_database(url, name)
    try:
        yield database
    finally:
        await database.close()


async def _schema(database: Database) -> Schema:
    async with database.as_itself() as connection:
        return await schema_of(connection)
