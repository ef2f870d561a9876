"""Real PostgreSQL and Valkey for every test that stores something.

One pair of embedded servers for the whole run; each test gets a database of its own, copied
from a migrated one, and an emptied Valkey.
"""

from __future__ import annotations

import asyncio
import itertools
import subprocess
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import asyncpg
import pytest
from redis import Redis

from gateway.settings import Settings
from gateway.store import Store, open_store
from gateway.store.database import Database
from gateway.store.embedded import EmbeddedServers
from gateway.store.migrate import upgrade
from gateway.store.partitions import Partitions
from gateway.store.postgres_server import OWNER, SUPERUSER
from tests.passable import passable_directory

_TEMPLATE = "migrated"
_numbers = itertools.count()


@pytest.fixture(scope="session")
def servers() -> Iterator[EmbeddedServers]:
    """Run both servers, with a migrated database to copy."""
    with passable_directory() as parent, EmbeddedServers(parent / "data") as running:
        asyncio.run(_make_template(running))
        yield running


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """Name a data directory, not there yet, for embedded servers of the test's own."""
    with passable_directory() as parent:
        yield parent / "data"


@pytest.fixture(scope="session")
def made_data_dir() -> Iterator[Path]:
    """Make a data directory by one start and stop; to be copied, never used itself."""
    with passable_directory() as parent:
        with EmbeddedServers(parent / "data"):
            pass
        yield parent / "data"


@pytest.fixture
def used_data_dir(made_data_dir: Path, data_dir: Path) -> Path:
    """Copy a data directory that was started before, which is quicker than to make one."""
    subprocess.run(["cp", "-a", str(made_data_dir), str(data_dir)], check=True)
    return data_dir


@pytest.fixture
def empty_database_url(servers: EmbeddedServers) -> str:
    """Make a database with nothing in it, owned by a user who is no superuser."""
    return _create_database(servers, "template0")


@pytest.fixture
def database_url(servers: EmbeddedServers) -> str:
    """Make a database with the newest schema and no rows."""
    return _create_database(servers, _TEMPLATE)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """Open a database with the newest schema and no rows."""
    database = Database(database_url)
    yield database
    await database.close()


@pytest.fixture
def redis_url(servers: EmbeddedServers) -> str:
    """Empty Valkey and return its URL."""
    with Redis.from_url(servers.redis_url()) as redis:
        redis.flushall()
    return servers.redis_url()


@pytest.fixture
def settings(tmp_path: Path, database_url: str, redis_url: str) -> Settings:
    """Point a new data directory at the running servers."""
    return Settings(data_dir=tmp_path / "data", database_url=database_url, redis_url=redis_url)


@pytest.fixture
async def store(settings: Settings) -> AsyncIterator[Store]:
    """Open a store after its first start: tenants acme and globex, a key each."""
    async with open_store(settings) as opened:
        yield opened


async def _make_template(servers: EmbeddedServers) -> None:
    # No database here outlives the run; the copies would be synced to the disk one by one.
    await _execute(servers, "ALTER SYSTEM SET fsync = off")
    await _execute(servers, "SELECT pg_reload_conf()")
    await _execute(servers, f"CREATE DATABASE {_TEMPLATE} OWNER {OWNER}")
    database = Database(servers.database_url(database=_TEMPLATE))
    await upgrade(database)
    await Partitions(database).look_after()  # once, not at every start of a test
    await database.close()


def _create_database(servers: EmbeddedServers, template: str) -> str:
    name = f"test_{next(_numbers)}"
    statement = f"CREATE DATABASE {name} TEMPLATE {template} OWNER {OWNER}"
    # In a loop and a thread of its own: the test's loop may be running.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, _execute(servers, statement)).result()
    return servers.database_url(database=name)


async def _execute(servers: EmbeddedServers, statement: str) -> None:
    connection = await asyncpg.connect(servers.database_url(SUPERUSER, "postgres"))
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
