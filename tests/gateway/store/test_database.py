"""Transactions, roles and row-level security against a real PostgreSQL."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.exc import DBAPIError

from gateway.errors import StoreUnavailable
from gateway.store import Store
from gateway.store.database import Database, plain_url
from gateway.store.embedded import EmbeddedServers
from gateway.store.pools import RULES, Purpose
from gateway.store.tables import admin_tokens, key_secrets, keys, organisations, tenants
from tests.faults.postgres import PostgresProxy
from tests.faults.proxy import Fault

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("table", [keys, key_secrets], ids=lambda table: table.name)
async def test_a_tenant_sees_no_row_of_another_without_any_where(store: Store, table) -> None:  # type: ignore[no-untyped-def]
    """A query that forgot its WHERE returns the named tenant's rows alone."""
    acme, globex = await _tenants(store)
    async with store.database.tenant(globex) as connection:
        seen = (await connection.scalars(select(table.c.tenant_id))).all()
    assert seen == [globex]
    async with store.database.platform() as connection:
        everyone = (await connection.scalars(select(table.c.tenant_id))).all()
    assert set(everyone) == {acme, globex}


async def test_a_tenant_sees_itself_alone_among_tenants(store: Store) -> None:
    """The table of tenants is filtered too."""
    acme, _ = await _tenants(store)
    async with store.database.tenant(acme) as connection:
        assert (await connection.scalars(select(tenants.c.name))).all() == ["acme"]


async def test_a_tenant_can_change_no_row_of_another(store: Store) -> None:
    """An UPDATE without WHERE touches one tenant; moving a row to another tenant is refused."""
    acme, globex = await _tenants(store)
    async with store.database.tenant(globex) as connection:
        changed = await connection.execute(keys.update().values(name="renamed"))
        assert changed.rowcount == 1
    with pytest.raises(DBAPIError, match="row-level security"):
        async with store.database.tenant(globex) as connection:
            await connection.execute(keys.update().values(tenant_id=acme))


@pytest.mark.parametrize("table", [organisations, admin_tokens], ids=lambda table: table.name)
async def test_a_tenant_may_not_read_what_is_the_platforms(store: Store, table) -> None:  # type: ignore[no-untyped-def]
    """The application role has no grant on tables without tenants."""
    acme, _ = await _tenants(store)
    with pytest.raises(DBAPIError, match="permission denied"):
        async with store.database.tenant(acme) as connection:
            await connection.execute(select(table))


async def test_role_and_tenant_end_with_the_transaction(store: Store) -> None:
    """The next transaction on the same connection is nobody's."""
    acme, _ = await _tenants(store)
    async with store.database.tenant(acme, Purpose.LEDGER) as connection:
        assert await connection.scalar(text("SELECT current_user")) == "sluice_app"
    async with store.database.as_itself() as connection:
        user, tenant = (
            await connection.execute(
                text("SELECT current_user, current_setting('sluice.tenant_id', true)")
            )
        ).one()
    assert (user, tenant or None) == ("sluice_server", None)


async def test_neither_role_bypasses_row_level_security(database: Database) -> None:
    """No role of ours is a superuser or has BYPASSRLS."""
    query = text(
        "SELECT count(*) FROM pg_roles WHERE rolname LIKE 'sluice%' AND (rolsuper OR rolbypassrls)"
    )
    async with database.as_itself() as connection:
        assert await connection.scalar(query) == 0


async def test_an_exception_rolls_back(store: Store) -> None:
    """What a failed block wrote is gone."""
    acme, _ = await _tenants(store)

    async def fail_after_writing() -> None:
        async with store.database.tenant(acme) as connection:
            await connection.execute(keys.update().values(name="lost"))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await fail_after_writing()
    async with store.database.tenant(acme) as connection:
        count = select(func.count()).where(keys.c.name == "lost")
        assert await connection.scalar(count) == 0


async def test_a_server_that_is_gone_is_store_unavailable(tmp_path: Path) -> None:
    """A refused connection, and one that is cut, are the error that callers can wait out."""
    with EmbeddedServers(tmp_path / "data", valkey=False) as servers:
        database = Database(servers.database_url())
        async with database.as_itself() as connection:
            assert await connection.scalar(text("SELECT 1")) == 1
    with pytest.raises(StoreUnavailable):
        async with database.platform():
            pass
    await database.close()


async def test_a_server_that_says_nothing_is_away_soon(database_url: str) -> None:
    """However long its statements may take; what hangs is not used again once it answers."""
    async with PostgresProxy(database_url) as proxy:
        database = Database(proxy.url, answer_s=1.0)
        async with database.platform(Purpose.LEDGER) as connection:
            await connection.execute(text("SELECT 1"))
        proxy.fault = Fault(blackhole=True)
        async with asyncio.timeout(RULES[Purpose.LEDGER].statement_s / 2):
            with pytest.raises(StoreUnavailable):
                async with database.platform(Purpose.LEDGER):
                    pass
        proxy.fault = Fault()
        async with database.platform(Purpose.LEDGER) as connection:
            assert await connection.scalar(text("SELECT 1")) == 1
        await database.close()


@pytest.mark.parametrize(
    ("url", "plain"),
    [
        ("postgresql+asyncpg://u@h/d?sslmode=require", "postgresql://u@h/d?sslmode=require"),
        ("postgres://u:p%2B@h/d", "postgresql://u:p%2B@h/d"),
    ],
)
def test_a_url_may_name_sqlalchemys_driver(url: str, plain: str) -> None:
    """Both spellings of a URL lead to the same server, options untouched."""
    assert plain_url(url) == plain


async def _tenants(store: Store):  # type: ignore[no-untyped-def]
    organisation = await store.organisations.default()
    acme, globex = await store.tenants.list(organisation.id)
    return acme.id, globex.id
