"""Two logins: what the server's own may not do, whoever has got hold of a connection of it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import asyncpg
import pytest
from pydantic import SecretStr
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from gateway.errors import StartupFailed
from gateway.settings import Settings
from gateway.store import Store, open_store
from gateway.store.database import Database
from gateway.store.diagnosis import describe_database
from gateway.store.embedded import EmbeddedServers
from gateway.store.logins import DatabaseUrls, let_in
from gateway.store.migrate import HEAD
from gateway.store.postgres_server import LOGIN, MAINTENANCE, OWNER, SUPERUSER
from tests.gateway.usage_rows import usage_row

pytestmark = pytest.mark.anyio

REFUSED = "42501"
OPERATIONS = Path(__file__).parents[3] / "docs/operations.md"
# None: as it logs in, without a role.
ROLES = (None, "sluice_platform", "sluice_app")
STATEMENTS = [
    "DROP TABLE usage_hourly",
    "ALTER TABLE keys DISABLE ROW LEVEL SECURITY",
    "ALTER TABLE keys NO FORCE ROW LEVEL SECURITY",
    "ALTER TABLE audit_log DISABLE TRIGGER append_only",
    "ALTER TABLE usage_hourly DISABLE TRIGGER days_update",
    "DELETE FROM usage_daily",
    "ALTER TABLE usage_events DETACH PARTITION usage_events_default",
    "DROP POLICY tenant ON keys",
    "CREATE POLICY mine ON keys USING (true)",
    "TRUNCATE usage_events",
    "TRUNCATE audit_log",
    "UPDATE audit_log SET actor = 'nobody'",
    "DELETE FROM audit_log",
    "UPDATE alembic_version SET version_num = '0000'",
    "SELECT * FROM usage_events_default",
    "CREATE TABLE mine (id int)",
    "CREATE FUNCTION mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "CREATE SCHEMA mine",
    "CREATE ROLE mine",
    "ALTER ROLE sluice_platform BYPASSRLS",
    f"ALTER ROLE {LOGIN} SUPERUSER",
    f"GRANT {OWNER} TO {LOGIN}",
    f"SET ROLE {OWNER}",
    f"SET ROLE {SUPERUSER}",
    f"SET SESSION AUTHORIZATION {OWNER}",
    "SET session_replication_role = replica",
    "COPY (SELECT 1) TO PROGRAM 'true'",
]


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    """Connect as the server does."""
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


@pytest.mark.parametrize("role", ROLES)
async def test_the_servers_login_changes_no_table_and_no_role(
    connection: asyncpg.Connection, role: str | None
) -> None:
    """Each statement by which it could get past the walls is refused, whatever role it takes on."""
    if role is not None:
        await connection.execute(f"SET ROLE {role}")
    assert {s: await _sqlstate(connection, s) for s in STATEMENTS} == dict.fromkeys(
        STATEMENTS, REFUSED
    )


@pytest.mark.parametrize("table", ["keys", "tenants", "usage_events", "audit_log", "admin_tokens"])
async def test_without_a_role_it_sees_nothing(connection: asyncpg.Connection, table: str) -> None:
    """A transaction that forgot to step down is refused, and not shown every tenant."""
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await connection.fetch(f"SELECT * FROM {table}")


async def test_the_functions_of_the_owner_are_for_the_platform_alone(database: Database) -> None:
    """A tenant's transaction makes and drops no days of the ledger."""
    for call in ("make_ledger_day(DATE '2030-01-01')", "drop_ledger_day(DATE '2030-01-01')"):
        with pytest.raises(DBAPIError, match="permission denied for function"):
            await _as_a_tenant(database, f"SELECT {call}")


async def test_the_functions_find_nothing_that_a_caller_puts_in_their_way(
    database: Database,
) -> None:
    """A table of the session's own by the ledger's name is not taken for the ledger."""
    async with database.platform() as connection:
        # Allowed where the database lets everybody have tables of a session's own, as here.
        await connection.execute(text("CREATE TEMP TABLE usage_events (at timestamptz)"))
        await connection.execute(text("SET LOCAL search_path = pg_temp"))
        made = text("SELECT public.make_ledger_day(DATE '2033-05-05')")
        assert await connection.scalar(made) is True
        # Whom it belongs to shows which one it was made like.
        found = text(
            "SELECT tableowner FROM pg_tables "
            "WHERE schemaname = 'public' AND tablename = 'usage_events_20330505'"
        )
        assert await connection.scalar(found) == OWNER


async def test_the_embedded_server_has_both(data_dir: Path) -> None:
    """A first start makes them by itself, and serves as the one that owns nothing."""
    async with open_store(Settings(data_dir=data_dir)) as store:
        await _serves_as(store, LOGIN)
        async with store.database.platform() as connection:
            with pytest.raises(DBAPIError, match="permission denied"):
                await connection.execute(text("CREATE TEMP TABLE mine (id int)"))


async def test_a_cluster_of_before_gets_the_login(used_data_dir: Path) -> None:
    """A data directory that was made without it is given it at the next start, and keeps its
    tables."""
    with EmbeddedServers(used_data_dir, valkey=False) as servers:
        connection = await asyncpg.connect(servers.database_url(SUPERUSER, MAINTENANCE))
        await connection.execute("DROP DATABASE sluice")
        await connection.execute(f"DROP ROLE {LOGIN}")
        await connection.execute(f"CREATE DATABASE sluice OWNER {OWNER}")
        await connection.close()
        before = await asyncpg.connect(servers.database_url(OWNER))
        await before.execute("CREATE TABLE kept AS SELECT 42 AS answer")
        await before.close()
    async with open_store(Settings(data_dir=used_data_dir)) as store:
        await _serves_as(store, LOGIN)
    with EmbeddedServers(used_data_dir, valkey=False) as servers:
        owner = await asyncpg.connect(servers.database_url(OWNER))
        assert await owner.fetchval("SELECT answer FROM kept") == 42
        await owner.close()


async def test_a_killed_first_start_is_continued(used_data_dir: Path) -> None:
    """What is missing of roles and database is made, what is there is left."""
    with EmbeddedServers(used_data_dir, valkey=False) as servers:
        connection = await asyncpg.connect(servers.database_url(SUPERUSER, MAINTENANCE))
        await connection.execute("DROP DATABASE sluice")
        await connection.close()
    with EmbeddedServers(used_data_dir, valkey=False) as servers:
        login = await asyncpg.connect(servers.database_url())
        assert await login.fetchval("SELECT current_user") == LOGIN
        await login.close()


async def test_one_url_serves_as_before(settings: Settings) -> None:
    """Without a URL of an owner's the login migrates too, and the doctor is told what it is."""
    owner = settings.database_owner_url
    assert owner is not None
    alone = settings.model_copy(update={"database_url": owner, "database_owner_url": None})
    async with open_store(alone) as store:
        await _serves_as(store, OWNER)
    url = owner.get_secret_value()
    assert (await describe_database(DatabaseUrls(url, url))).owns_tables
    assert settings.database_url is not None
    server = settings.database_url.get_secret_value()
    state = await describe_database(DatabaseUrls(server, url))
    assert (state.role, state.owns_tables, state.schema.revision) == (LOGIN, False, HEAD)


@pytest.fixture
async def stranger(servers: EmbeddedServers, database_url: str) -> AsyncIterator[str]:
    """Make a login that nobody has let in yet; returns its URL."""
    superuser = await asyncpg.connect(servers.database_url(SUPERUSER, MAINTENANCE))
    await superuser.execute('CREATE ROLE "a stranger" LOGIN NOINHERIT')
    yield database_url.replace(LOGIN, "a%20stranger", 1)
    await superuser.execute('DROP ROLE "a stranger"')
    await superuser.close()


async def test_the_documented_roles_can_be_made(servers: EmbeddedServers) -> None:
    """What docs/operations.md says for a PostgreSQL of one's own makes an owner and a login."""
    [statements] = re.findall(r"^```sql\n(.*?)^```", OPERATIONS.read_text(), re.M | re.S)
    superuser = await asyncpg.connect(servers.database_url(SUPERUSER, MAINTENANCE))
    try:
        # A cluster has them once: under other names here.
        for statement in re.sub(r"\bsluice\w*", r"documented_\g<0>", statements).splitlines():
            await superuser.execute(statement)
        roles = await superuser.fetch(
            "SELECT rolname, rolsuper, rolcreaterole, rolinherit, rolcanlogin FROM pg_roles "
            "WHERE rolname LIKE 'documented%' ORDER BY rolname"
        )
        assert [tuple(role) for role in roles] == [
            ("documented_sluice_owner", False, True, True, True),
            ("documented_sluice_server", False, False, False, True),
        ]
        owner = "SELECT pg_get_userbyid(datdba) FROM pg_database WHERE datname LIKE 'documented%'"
        assert await superuser.fetchval(owner) == "documented_sluice_owner"
    finally:
        await superuser.execute("DROP DATABASE IF EXISTS documented_sluice")
        for role in ("owner", "server"):
            await superuser.execute(f"DROP ROLE IF EXISTS documented_sluice_{role}")
        await superuser.close()


async def test_the_owner_lets_a_login_in(settings: Settings, stranger: str) -> None:
    """A role that was just made serves at the next start, without a word to the database."""
    chosen = settings.model_copy(update={"database_url": SecretStr(stranger)})
    async with open_store(chosen) as store:
        await _serves_as(store, "a stranger")


async def test_gateways_that_start_together_let_a_login_in_once(
    owner: Database, stranger: str
) -> None:
    """Four at once all succeed."""
    servers = [Database(stranger) for _ in range(4)]
    await asyncio.gather(*(let_in(owner, server) for server in servers))
    for server in servers:
        async with server.platform() as connection:
            assert await connection.scalar(text("SELECT current_user")) == "sluice_platform"
        await server.close()


async def test_an_owner_who_may_not_is_said(database: Database, stranger: str) -> None:
    """The start fails with the statement that a superuser is to run."""
    server = Database(stranger)
    with pytest.raises(StartupFailed, match='GRANT sluice_app, sluice_platform TO "a stranger"'):
        await let_in(database, server)
    await server.close()


async def _sqlstate(connection: asyncpg.Connection, statement: str) -> str:
    """Return what a statement fails with, or nothing."""
    try:
        await connection.execute(statement)
    except asyncpg.PostgresError as exc:
        return str(exc.sqlstate)
    return ""


async def _as_a_tenant(database: Database, statement: str) -> None:
    async with database.tenant(UUID(int=1)) as connection:
        await connection.execute(text(statement))


async def _serves_as(store: Store, login: str) -> None:
    async with store.database.as_itself() as connection:
        assert await connection.scalar(text("SELECT session_user")) == login
    await store.ledger.insert([usage_row(at=datetime.now(UTC))])
    async with store.database.platform() as connection:
        assert await connection.scalar(text("SELECT count(*) FROM usage_events")) == 1
