"""Real PostgreSQL and Valkey for every test that stores something.

One pair of embedded servers for each process of the run; each test gets a database of its own,
copied from a migrated one and dropped after it, and an emptied Valkey. Where it has a store of its
own too, that database had its first start before it was copied, which is half the work of one.
"""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import asyncpg
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from redis import Redis

from gateway.credentials import Secrets
from gateway.domain import FirstStart
from gateway.settings import Settings
from gateway.store import Store, open_store
from gateway.store.database import Database
from gateway.store.embedded import EmbeddedServers
from gateway.store.logins import let_in
from gateway.store.migrate import upgrade
from gateway.store.partitions import Partitions
from gateway.store.postgres_server import LOGIN, OWNER, SUPERUSER
from gateway.store.record_hours import RecordHours
from gateway.store.secrets import put_secret
from tests.passable import passable_directory

_TEMPLATE, _STARTED = "migrated", "started"
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Started:
    """Hold what belongs to the database that had its first start: it is shown once."""

    secrets: Secrets
    first_start: FirstStart


@pytest.fixture(scope="session")
def servers() -> Iterator[EmbeddedServers]:
    """Run both servers."""
    with passable_directory() as parent, EmbeddedServers(parent / "data") as running:
        yield running


@pytest.fixture(scope="session")
def databases(servers: EmbeddedServers) -> Iterator[Databases]:
    """Make databases, empty ones or copies of one with the newest schema."""
    # In a thread with a loop of its own: the test's loop may be running.
    with start_blocking_portal() as portal:
        databases = Databases(servers, portal)
        portal.call(databases.open)
        yield databases
        portal.call(databases.close)


@pytest.fixture(scope="session")
def started(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Started:
    """Make the database that had its first start; to be copied, never used itself."""
    return databases.start(tmp_path_factory.mktemp("started"))


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
def empty_database_url(databases: Databases) -> Iterator[str]:
    """Make a database with nothing in it, owned by a user who is no superuser."""
    with databases.fresh("template0") as url:
        yield owner_of(url)


@pytest.fixture
def database_url(request: pytest.FixtureRequest, databases: Databases) -> Iterator[str]:
    """Make a database with the newest schema; a server logs in so.

    It has no rows but those of a first start, where the test has a store of its own.
    """
    template = _TEMPLATE
    if _has_own_store(request):
        request.getfixturevalue("started")
        template = _STARTED
    with databases.fresh(template) as url:
        yield url


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """Open a database with the newest schema and no rows, as a server does."""
    database = Database(database_url)
    yield database
    await database.close()


@pytest.fixture
async def owner(database_url: str) -> AsyncIterator[Database]:
    """Open the same database as the owner of its tables."""
    owner = Database(owner_of(database_url))
    yield owner
    await owner.close()


@pytest.fixture
def redis_url(servers: EmbeddedServers) -> str:
    """Empty Valkey and return its URL."""
    with Redis.from_url(servers.redis_url()) as redis:
        redis.flushall()
    return servers.redis_url()


@pytest.fixture
def settings(tmp_path: Path, database_url: str, redis_url: str) -> Settings:
    """Point a new data directory at the running servers."""
    return Settings(
        data_dir=tmp_path / "data",
        database_url=database_url,
        database_owner_url=owner_of(database_url),
        redis_url=redis_url,
    )


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Store:
    """Return a store after its first start: tenants acme and globex, a key each.

    Tests that are marked with `changes_nothing` have one together.
    """
    found: Store = request.getfixturevalue(
        "own_store" if _has_own_store(request) else "shared_store"
    )
    return found


@pytest.fixture
async def own_store(settings: Settings, started: Started) -> AsyncIterator[Store]:
    """Open a store of the test's own, as if by its first start."""
    put_secret(settings.data_dir, started.secrets)
    # The schema is there: as after `sluice db upgrade`, the server's login is all that it needs.
    async with open_store(settings.model_copy(update={"database_owner_url": None})) as opened:
        assert opened.first_start is None, "it would have made other keys"
        yield replace(opened, first_start=started.first_start)


@pytest.fixture(scope="module")
async def shared_store(
    databases: Databases, servers: EmbeddedServers, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Store]:
    """Open a store for the tests of a module that change nothing, and see that none did."""
    with databases.fresh(_TEMPLATE) as url:
        settings = Settings(
            data_dir=tmp_path_factory.mktemp("shared"),
            database_url=url,
            database_owner_url=owner_of(url),
            redis_url=servers.redis_url(),
        )
        async with open_store(settings) as opened:
            before = await _num_changes(servers, url)
            yield opened
            assert await _num_changes(servers, url) == before


def _has_own_store(request: pytest.FixtureRequest) -> bool:
    """Tell whether the test has a store that no other test has."""
    if request.node.get_closest_marker("changes_nothing"):
        return False
    return not {"store", "own_store"}.isdisjoint(request.fixturenames)


def owner_of(url: str) -> str:
    """Return the URL of the same database for the owner of its tables."""
    return url.replace(LOGIN, OWNER, 1)


async def _num_changes(servers: EmbeddedServers, url: str) -> int:
    """Count what was ever changed in a database: every change is in the audit log."""
    connection = await asyncpg.connect(url.replace(LOGIN, SUPERUSER, 1))
    try:
        return int(await connection.fetchval("SELECT count(*) FROM audit_log"))
    finally:
        await connection.close()


async def _first_start(settings: Settings) -> Started:
    async with open_store(settings) as opened:
        assert opened.first_start is not None
        return Started(opened.secrets, opened.first_start)


class Databases:
    """Make and drop databases of the running servers, over one connection."""

    def __init__(self, servers: EmbeddedServers, portal: BlockingPortal) -> None:
        self._servers = servers
        self._portal = portal

    async def open(self) -> None:
        """Connect, and make the database that is copied."""
        self._connection = await asyncpg.connect(self._servers.database_url(SUPERUSER, "postgres"))
        # No database here outlives its test; the copies would be synced to the disk one by one.
        await self._connection.execute("ALTER SYSTEM SET fsync = off")
        await self._connection.execute("SELECT pg_reload_conf()")
        await self._connection.execute("SET statement_timeout = '60s'")
        await self._connection.execute(f"CREATE DATABASE {_TEMPLATE} OWNER {OWNER}")
        owner = Database(self._servers.database_url(OWNER, _TEMPLATE))
        database = Database(self._servers.database_url(database=_TEMPLATE))
        await upgrade(owner)
        await let_in(owner, database)
        # Once, not at every start of a test.
        await Partitions(database).look_after()
        await RecordHours(database, keep_hours=24).look_after()
        await owner.close()
        await database.close()

    async def close(self) -> None:
        await self._connection.close()

    def start(self, data_dir: Path) -> Started:
        """Make the database that had its first start, by one of the server's own."""
        self._execute(f"CREATE DATABASE {_STARTED} TEMPLATE {_TEMPLATE} OWNER {OWNER}")
        url = self._servers.database_url(database=_STARTED)
        settings = Settings(
            data_dir=data_dir,
            database_url=url,
            database_owner_url=owner_of(url),
            redis_url=self._servers.redis_url(),
        )
        return self._portal.call(_first_start, settings)

    @contextmanager
    def fresh(self, template: str) -> Iterator[str]:
        """Copy a database for as long as the block runs; yields its URL."""
        name = f"test_{next(_numbers)}"
        # As files: through the write-ahead log it costs three times as much.
        self._execute(
            f"CREATE DATABASE {name} TEMPLATE {template} OWNER {OWNER} STRATEGY FILE_COPY"
        )
        try:
            yield self._servers.database_url(database=name)
        finally:
            self._execute(f"DROP DATABASE {name} (FORCE)")

    def _execute(self, statement: str) -> None:
        self._portal.call(self._connection.execute, statement)
