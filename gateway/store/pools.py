"""The connections to PostgreSQL, apart by what they are for.

Whoever asks for much gets the connections of that purpose alone: reports that run for long, or a
flood of changes, leave the look-up of keys and the ledger their own. A pool is opened as it is
used. Each purpose has its time: the server gives a statement up after `statement_s` and a
transaction that does nothing after `IDLE_S`, whatever became of the gateway that began it.

The sizes are a promise to the server: `GATEWAYS` of them fit into PostgreSQL's default of 100
connections, of which it keeps three for superusers, and leave some for people.

A connection is asked whether it is still there before it is used, unless it was used a moment ago
or is known to be closed: asking takes three round trips, where a small query takes four in all.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

import asyncpg
from sqlalchemy import event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import InvalidatePoolError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection

_CONNECT_TIMEOUT_S: Final = 5.0
# For the server's own word, that it gave up a statement, to come first.
_SERVER_SAYS_S: Final = 2.0
# How long a caller waits for a connection of its purpose.
_WAIT_S: Final = 5.0
IDLE_S: Final = 30.0
# Who was there so lately is not asked.
PROVEN_S: Final = 1.0
_SEEN_S: Final = "seen_s"
GATEWAYS: Final = 4


@dataclass(frozen=True, slots=True)
class PoolRules:
    """Say how many connections a purpose has at most, and how long a statement may take."""

    size: int
    statement_s: float


class Purpose(Enum):
    """Name what a transaction is for, and with that whose connections it takes.

    `AUTH` looks keys up, for requests that wait for it. `LEDGER` bills, loads limits and keeps
    answers; it is also the owner's, who migrates. `SETTINGS` is what administrators look at and
    change, admin tokens included. `LEASES` is one, for the thread that renews those of batches'
    items and is told of new batches. `REPORTS` may be long: sums of usage, and the audit log.
    """

    AUTH = "auth"
    LEDGER = "ledger"
    SETTINGS = "settings"
    REPORTS = "reports"
    LEASES = "leases"


RULES: Final = {
    Purpose.AUTH: PoolRules(size=6, statement_s=5.0),
    Purpose.LEDGER: PoolRules(size=7, statement_s=30.0),
    Purpose.SETTINGS: PoolRules(size=4, statement_s=10.0),
    Purpose.REPORTS: PoolRules(size=4, statement_s=20.0),
    Purpose.LEASES: PoolRules(size=1, statement_s=8.0),
}
CONNECTIONS: Final = sum(rules.size for rules in RULES.values())


def open_pool(
    dsn: str,
    purpose: Purpose,
    rules: PoolRules,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncEngine:
    """Make the pool of one purpose; it connects when it is first used."""

    async def connect() -> asyncpg.Connection:
        return await asyncpg.connect(
            dsn,
            timeout=_CONNECT_TIMEOUT_S,
            command_timeout=rules.statement_s + _SERVER_SAYS_S,
            server_settings={
                "application_name": f"sluice {purpose.value}",
                "statement_timeout": _ms(rules.statement_s),
                "idle_in_transaction_session_timeout": _ms(IDLE_S),
            },
        )

    # A creator, not a URL: asyncpg understands all of libpq's options (sslmode, service,
    # several hosts) where SQLAlchemy's translation knows some.
    engine = create_async_engine(
        "postgresql+asyncpg://",
        async_creator=connect,
        pool_size=rules.size,
        max_overflow=0,
        pool_timeout=_WAIT_S,
        hide_parameters=True,  # an error's text goes to the log, a MAC must not
    )
    _look_before_use(engine, clock)
    return engine


def _look_before_use(engine: AsyncEngine, clock: Callable[[], float]) -> None:
    """Have connections that are gone replaced as they are taken from the pool, all at once.

    Source: SQLAlchemy's `pool_pre_ping`, which asks each time.
    """
    pool, gone = engine.sync_engine, engine.dialect.loaded_dbapi.Error

    @event.listens_for(pool, "checkin")
    def note(connection: DBAPIConnection | None, entry: ConnectionPoolEntry) -> None:
        if connection is not None:
            entry.info[_SEEN_S] = clock()

    @event.listens_for(pool, "checkout")
    def look(
        connection: DBAPIConnection, entry: ConnectionPoolEntry, _: PoolProxiedConnection
    ) -> None:
        driver: asyncpg.Connection = connection.driver_connection
        if driver.is_closed():
            raise InvalidatePoolError
        if clock() - entry.info.get(_SEEN_S, -math.inf) < PROVEN_S:
            return
        try:
            connection.ping()
        except gone as exc:
            if driver.is_closed():
                raise InvalidatePoolError from exc
            raise


def _ms(seconds: float) -> str:
    return str(round(seconds * 1000))
