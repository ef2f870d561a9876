"""Which errors of PostgreSQL say how the server is, by SQLSTATE: the one table.

What stands in it becomes `StoreUnavailable`, whoever asked and wherever it showed: when a
connection was opened (SQLAlchemy wraps that in a plain `DBAPIError`), in a statement, or in a
COMMIT. What does not is an error of the statement, which its caller knows or which is a bug.

Nothing is repeated here. A transaction is a block of its caller's, who alone can run it again:
those that must come through (the ledger, the ends of keyed requests, upkeep) do so for any
`StoreUnavailable`, as each may be repeated; a request gets a 503 that says when to. That holds for
a serialization failure and a deadlock too, after which the server has undone the whole transaction.
After a COMMIT whose answer was lost nobody knows; the same repetition is safe.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import asyncpg
from sqlalchemy.exc import DBAPIError, InterfaceError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from gateway.errors import StoreUnavailable

_RETRY_AFTER_S: Final = 1.0
# What a driver or the kernel raises where there is no server to speak; a `TimeoutError` is an
# `OSError`: nothing came within the time for a connection or a command.
SILENCE: Final = (OSError, PoolTimeout, asyncpg.InterfaceError)


@dataclass(frozen=True, slots=True)
class SqlFault:
    """Say what is the matter with the server.

    `is_passing`: to wait may help. `is_elsewhere`: what is to be had here is had at another server,
    so the connections that are open lead to the wrong one.
    """

    words: str
    is_passing: bool = True
    is_elsewhere: bool = False


# The longest prefix of an SQLSTATE counts: a code, or its class of two characters.
FAULTS: Final = {
    "08": SqlFault("the connection to PostgreSQL broke"),
    "25006": SqlFault("PostgreSQL is read-only: a standby, or about to be one", is_elsewhere=True),
    "25P03": SqlFault("PostgreSQL ended a transaction that was idle for too long"),
    "25P04": SqlFault("PostgreSQL ended a transaction that took too long"),
    "28": SqlFault("PostgreSQL does not let this user in", is_passing=False),
    "3D000": SqlFault("PostgreSQL has no such database", is_passing=False),
    "40": SqlFault("PostgreSQL undid a transaction that met another one"),
    "53": SqlFault("PostgreSQL is short of memory or disk"),
    "53300": SqlFault("PostgreSQL is full: it takes no more connections"),
    "55P03": SqlFault("a lock of PostgreSQL was not to be had in time"),
    "57014": SqlFault("PostgreSQL gave up a statement that took too long"),
    "57P0": SqlFault("PostgreSQL shuts down or has crashed"),
    "57P03": SqlFault("PostgreSQL is starting up"),
    "57P04": SqlFault("PostgreSQL has dropped this database", is_passing=False),
    "58": SqlFault("PostgreSQL cannot read or write its files"),
}
SILENT: Final = SqlFault("PostgreSQL does not answer")


def fault_of(exc: BaseException) -> SqlFault | None:
    """Tell what an error says about the server; None: it is about a statement, or not of SQL."""
    sqlstate = sqlstate_of(exc)
    fault = next(
        (FAULTS[sqlstate[:length]] for length in (5, 4, 2) if sqlstate[:length] in FAULTS), None
    )
    if fault is not None:
        return fault
    is_lost = isinstance(exc, DBAPIError) and exc.connection_invalidated
    return SILENT if is_lost or isinstance(exc, (InterfaceError, *SILENCE)) else None


def unavailable(exc: BaseException, fault: SqlFault) -> StoreUnavailable:
    """Return the error that callers know in place of a fault."""
    said = getattr(exc, "orig", None) or exc
    sqlstate = sqlstate_of(exc)
    why = f"{sqlstate}: {said}" if sqlstate else repr(said)
    return StoreUnavailable(detail=f"{fault.words} ({why})", retry_after_s=_RETRY_AFTER_S)


def sqlstate_of(exc: BaseException) -> str:
    """Return the SQLSTATE of a driver's or of SQLAlchemy's error, or nothing."""
    return str(getattr(getattr(exc, "orig", None) or exc, "sqlstate", None) or "")
