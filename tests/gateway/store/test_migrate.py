"""The migrations against a real PostgreSQL, as an owner who is no superuser."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text

import migrations
from gateway.errors import StartupFailed
from gateway.store.database import Database
from gateway.store.migrate import HEAD, downgrade, upgrade
from gateway.store.tables import metadata

pytestmark = pytest.mark.anyio


@pytest.fixture
async def empty(empty_database_url: str) -> AsyncIterator[Database]:
    """Open a database with nothing in it."""
    database = Database(empty_database_url)
    yield database
    await database.close()


async def test_up_down_and_up_again(empty: Database) -> None:
    """Every table comes, goes, and comes again."""
    await upgrade(empty)
    assert await _tables(empty) >= set(metadata.tables)
    await downgrade(empty, "base")
    assert await _tables(empty) == {"alembic_version"}
    await upgrade(empty)
    assert await _tables(empty) >= set(metadata.tables)


async def test_the_migrations_make_what_the_tables_declare(empty: Database) -> None:
    """Alembic finds no difference between the migrated schema and `tables`."""
    await upgrade(empty)
    async with empty.owner() as connection:
        differences = await connection.run_sync(_differences)
    assert differences == []


def test_head_names_the_newest_revision() -> None:
    """The constant that lets a warm start skip Alembic is the newest revision."""
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    assert ScriptDirectory.from_config(config).get_current_head() == HEAD


async def test_gateways_that_start_together_migrate_once(empty_database_url: str) -> None:
    """Four upgrades at once all succeed."""
    databases = [Database(empty_database_url) for _ in range(4)]
    await asyncio.gather(*map(upgrade, databases))
    assert await _tables(databases[0]) >= set(metadata.tables)
    for database in databases:
        await database.close()


async def test_a_database_of_a_newer_release_is_refused(empty: Database) -> None:
    """An unknown revision is a start that fails with one line, not a guess."""
    await upgrade(empty)
    async with empty.owner() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StartupFailed, match="newer sluice"):
        await upgrade(empty)


async def test_every_table_of_tenants_forces_row_level_security(database: Database) -> None:
    """A table with a tenant column has row-level security, enabled and forced."""
    async with database.owner() as connection:
        unprotected = await connection.scalars(
            text(
                "SELECT DISTINCT c.relname "
                "FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid "
                "WHERE c.relkind = 'r' AND (a.attname = 'tenant_id' OR c.relname = 'tenants') "
                "AND NOT (c.relrowsecurity AND c.relforcerowsecurity)"
            )
        )
        assert unprotected.all() == []


async def _tables(database: Database) -> set[str]:
    async with database.owner() as connection:
        return set(await connection.run_sync(lambda sync: inspect(sync).get_table_names()))


def _differences(connection: Connection) -> list[object]:
    return list(compare_metadata(MigrationContext.configure(connection), metadata))
