"""What a server says of itself becomes `StoreUnavailable`, wherever and however it says it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
from sqlalchemy import insert, select, text
from sqlalchemy.exc import DBAPIError

from gateway.errors import StoreUnavailable
from gateway.store import pools
from gateway.store.database import Database, connect_patiently
from gateway.store.pools import PoolRules, Purpose
from gateway.store.sql_faults import FAULTS
from gateway.store.tables import organisations
from tests.faults.postgres import FULL, STARTING, Cut, PostgresProxy
from tests.faults.proxy import Fault

pytestmark = pytest.mark.anyio

ONE = text("SELECT 1")
CODES = [
    *("08000", "08003", "08006", "25006", "25P03", "25P04", "28000", "28P01", "3D000"),
    *("40001", "40P01", "40003", "53000", "53100", "53200", "53300", "55P03", "57014"),
    *("57P01", "57P02", "57P03", "57P04", "57P05", "58000", "58030"),
]


@pytest.fixture
async def proxy(database_url: str) -> AsyncIterator[PostgresProxy]:
    """Stand before a migrated database of the test's own."""
    async with PostgresProxy(database_url) as running:
        yield running


@pytest.fixture
async def database(proxy: PostgresProxy) -> AsyncIterator[Database]:
    """Reach that database through the proxy."""
    opened = Database(proxy.url)
    yield opened
    await opened.close()


async def raise_in_server(database: Database, sqlstate: str) -> None:
    """Have a statement fail with an SQLSTATE."""
    statement = f"DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '{sqlstate}'; END $$"
    async with database.as_itself() as connection:
        await connection.execute(text(statement))


async def ask(database: Database) -> object:
    async with database.platform() as connection:
        return await connection.scalar(ONE)


def test_each_row_of_the_table_is_tried_here() -> None:
    """No row stands for nothing that a server says."""
    untried = [row for row in FAULTS if not any(code.startswith(row) for code in CODES)]
    assert untried == []


@pytest.mark.parametrize("sqlstate", CODES)
async def test_a_statement_that_meets_a_state_of_the_server(
    database: Database, sqlstate: str
) -> None:
    """It is an error that can be waited out and that names itself; the next statement is served."""
    with pytest.raises(StoreUnavailable, match=sqlstate) as caught:
        await raise_in_server(database, sqlstate)
    assert caught.value.retry_after_s == 1
    assert await ask(database) == 1


@pytest.mark.parametrize("sqlstate", CODES)
async def test_a_connection_that_is_refused(
    proxy: PostgresProxy, database: Database, sqlstate: str
) -> None:
    """So is a server that lets nobody in, connections that were open being gone."""
    assert await ask(database) == 1
    proxy.refuse(sqlstate)
    # Until it has heard of that, who was just there is not asked: the connection breaks under it.
    await asyncio.sleep(0.02)
    with pytest.raises(StoreUnavailable, match=sqlstate):
        await ask(database)
    proxy.relent()
    assert await ask(database) == 1


@pytest.mark.parametrize("sqlstate", ["22003", "23505", "42501", "42P01", "P0001", "XX000"])
async def test_an_error_of_a_statement_stays_what_it_is(database: Database, sqlstate: str) -> None:
    """What a caller knows, or what is a bug, is nobody's to wait out."""
    with pytest.raises(DBAPIError):
        await raise_in_server(database, sqlstate)


async def test_connections_to_a_standby_are_not_used_again(
    proxy: PostgresProxy, database: Database
) -> None:
    """After 25006 the next transaction asks for a server anew, as the name may lead elsewhere.

    That holds for connections of every purpose, not of the one that met it alone.
    """
    await ask(database)
    with pytest.raises(StoreUnavailable):
        await raise_in_server(database, "25006")
    before = proxy.counts.accepted
    await ask(database)
    assert proxy.counts.accepted == before + 1


@pytest.mark.parametrize("is_passed", [False, True], ids=["lost", "done"])
async def test_a_commit_that_is_cut(
    proxy: PostgresProxy, database: Database, is_passed: bool
) -> None:
    """Nobody knows whether it was done; either way it is an error that can be waited out."""
    await ask(database)
    proxy.cut = Cut(b"COMMIT", is_passed=is_passed)

    async def write() -> None:
        async with database.platform() as connection:
            await connection.execute(insert(organisations).values(id=uuid4(), name="made here"))

    with pytest.raises(StoreUnavailable):
        await write()
    assert proxy.cut is None
    async with database.platform() as connection:
        found = (await connection.scalars(select(organisations.c.name))).all()
    assert found == ["made here"] * is_passed


@pytest.mark.parametrize("is_known", [True, False], ids=["pooled", "new"])
async def test_a_server_that_says_nothing(
    proxy: PostgresProxy, database_url: str, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    """A deadline ends the wait, for a connection as for a statement; afterwards it serves."""
    monkeypatch.setattr(pools, "_SERVER_SAYS_S", 0.0)
    monkeypatch.setattr(pools, "_CONNECT_TIMEOUT_S", 0.2)
    database = Database(proxy.url, dict.fromkeys(Purpose, PoolRules(size=1, statement_s=0.2)))
    if is_known:
        await ask(database)
    proxy.fault = Fault(blackhole=True)
    async with asyncio.timeout(10):
        with pytest.raises(StoreUnavailable):
            await ask(database)
    proxy.fault = Fault()
    assert await ask(database) == 1
    await database.close()


async def test_a_server_that_is_slow_is_served_by(proxy: PostgresProxy, database: Database) -> None:
    """A delay is no fault."""
    proxy.fault = Fault(latency_s=0.02)
    assert await ask(database) == 1


@pytest.mark.parametrize("sqlstate", [STARTING, FULL])
async def test_a_start_waits_and_says_for_what(
    proxy: PostgresProxy, sqlstate: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A log line names what the server says; once it lets one in, the start goes on."""
    proxy.refuse(sqlstate)
    opening = asyncio.create_task(
        connect_patiently(proxy.url, silent_s=0.0, told_s=60.0, tell_every_s=0.0)
    )
    while proxy.num_refused < 2:
        assert not opening.done()
        await asyncio.sleep(0.01)
    proxy.relent()
    database = await opening
    assert await ask(database) == 1
    assert "the start waits for the database: PostgreSQL is" in caplog.text
    assert sqlstate in caplog.text
    await database.close()


@pytest.mark.parametrize("sqlstate", [STARTING, FULL])
async def test_a_start_gives_up_with_the_reason(proxy: PostgresProxy, sqlstate: str) -> None:
    """After its patience the last thing that the server said is the error."""
    proxy.refuse(sqlstate)
    with pytest.raises(StoreUnavailable, match=sqlstate):
        await connect_patiently(proxy.url, silent_s=60.0, told_s=0.0)


async def test_a_start_does_not_wait_for_what_does_not_pass(proxy: PostgresProxy) -> None:
    """A wrong password or a wrong name stays wrong."""
    proxy.refuse("28P01")
    with pytest.raises(StoreUnavailable, match="28P01"):
        await connect_patiently(proxy.url, silent_s=60.0, told_s=60.0)
    assert proxy.num_refused == 1
