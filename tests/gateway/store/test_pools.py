"""Connections apart by what they are for, against a real PostgreSQL."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import asyncpg
import pytest
from sqlalchemy import text

from gateway.errors import StoreUnavailable
from gateway.services.ledger import report_gate
from gateway.store import pools
from gateway.store.database import Database
from gateway.store.pools import (
    CONNECTIONS,
    GATEWAYS,
    IDLE_S,
    PROVEN_S,
    RULES,
    PoolRules,
    Purpose,
    open_pool,
)
from gateway.store.postgres_server import _OPTIONS

pytestmark = pytest.mark.anyio

SOON_S = 2.0
ONE = text("SELECT 1")


@pytest.mark.parametrize("full", Purpose)
async def test_a_purpose_that_is_full_is_nobody_elses_matter(
    database_url: str, full: Purpose, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every connection of one purpose held, one more is refused, and the others are served."""
    monkeypatch.setattr(pools, "_WAIT_S", 0.05)
    rules = {**RULES, full: PoolRules(size=2, statement_s=5.0)}
    held = Database(database_url, rules)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(held.close)
        for _ in range(2):
            await stack.enter_async_context(held.platform(full))
        for other in set(Purpose) - {full}:
            async with asyncio.timeout(SOON_S), held.platform(other) as connection:
                assert await connection.scalar(ONE) == 1
        with pytest.raises(StoreUnavailable):
            async with asyncio.timeout(SOON_S), held.platform(full):
                pass


@pytest.mark.parametrize("purpose", Purpose)
async def test_the_server_gives_up_what_takes_too_long(
    database: Database, purpose: Purpose
) -> None:
    """Each connection brings its purpose's times to the server, which keeps them by itself."""
    query = text(
        "SELECT name, setting::int FROM pg_settings WHERE name = ANY("
        "ARRAY['statement_timeout', 'idle_in_transaction_session_timeout'])"
    )
    async with database.platform(purpose) as connection:
        settings = {row.name: row.setting for row in await connection.execute(query)}
        name = await connection.scalar(text("SELECT current_setting('application_name')"))
    assert settings == {
        "statement_timeout": RULES[purpose].statement_s * 1000,
        "idle_in_transaction_session_timeout": IDLE_S * 1000,
    }
    assert name == f"sluice {purpose.value}"


async def test_a_statement_that_was_given_up_is_said_so(database_url: str) -> None:
    """The caller gets an error to wait out, with the server's word for why, not our own silence."""
    brief = Database(database_url, {**RULES, Purpose.REPORTS: PoolRules(size=1, statement_s=0.1)})

    async def sleep() -> None:
        async with brief.platform(Purpose.REPORTS) as connection:
            await connection.execute(text("SELECT pg_sleep(30)"))

    with pytest.raises(StoreUnavailable, match="57014"):
        async with asyncio.timeout(SOON_S):
            await sleep()
    await brief.close()


class Watched:
    """Know a pool of one connection, by a clock of ours, and how often that was asked anything."""

    def __init__(self, database_url: str) -> None:
        self.now_s = 0.0
        self.engine = open_pool(
            database_url, Purpose.AUTH, PoolRules(size=1, statement_s=5.0), clock=lambda: self.now_s
        )
        self.asked: list[str] = []

    async def use(self) -> int:
        """Return the server's process that the connection speaks to."""
        async with self.engine.connect() as connection:
            raw = await connection.get_raw_connection()
            driver: asyncpg.Connection = raw.driver_connection
            driver.remove_query_logger(self._note)
            pid: int = await connection.scalar(text("SELECT pg_backend_pid()"))
            driver.add_query_logger(self._note)
        return pid

    def _note(self, query: object) -> None:
        # asyncpg's record of a query has no type.
        self.asked.append(query.query)  # type: ignore[attr-defined]


async def test_who_was_just_used_is_not_asked_whether_it_is_there(database_url: str) -> None:
    """A connection is asked once it has been idle, and costs no more than its query before."""
    pool = Watched(database_url)
    pid = await pool.use()
    pool.now_s += PROVEN_S - 0.01
    assert await pool.use() == pid
    assert ";" not in pool.asked
    pool.now_s += PROVEN_S
    assert await pool.use() == pid
    assert pool.asked.count(";") == 1
    await pool.engine.dispose()


@pytest.mark.parametrize("idle_s", [0.0, 2 * PROVEN_S])
async def test_a_connection_that_was_ended_is_replaced(
    database: Database, database_url: str, idle_s: float
) -> None:
    """However lately it was used, and nobody who takes it notices."""
    pool = Watched(database_url)
    pid = await pool.use()
    async with database.as_itself() as connection:
        await connection.execute(text(f"SELECT pg_terminate_backend({pid})"))
    await asyncio.sleep(0.1)
    pool.now_s += idle_s
    assert await pool.use() != pid
    await pool.engine.dispose()


def test_a_few_gateways_fit_into_a_server_as_it_is_shipped() -> None:
    """PostgreSQL takes 100 connections, of which superusers keep three; people need some too."""
    assert GATEWAYS * CONNECTIONS <= 100 - 3 - 8
    assert int(_OPTIONS["max_connections"]) >= 2 * CONNECTIONS + 3
    assert RULES[Purpose.REPORTS].size > report_gate.MAX_RUNNING
