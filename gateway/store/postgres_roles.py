"""The roles of the embedded PostgreSQL, and its database, made where they are missing.

Neither login is a superuser, so row-level security and grants bind both as they do on a server that
somebody else runs. The owner makes the tables, and in the first migration the other roles. The
server's own login inherits nothing: a transaction that forgot to step down can do nothing.
"""

from __future__ import annotations

from typing import Final

import asyncpg

from gateway.store.database import APP_ROLE, PLATFORM_ROLE
from gateway.store.postgres_server import DATABASE, LOGIN, OWNER

_TIMEOUT_S: Final = 30.0
_ROLES: Final = {
    OWNER: f"CREATE ROLE {OWNER} LOGIN CREATEROLE",
    LOGIN: f"CREATE ROLE {LOGIN} LOGIN NOINHERIT",
}
_DATABASE: Final = (
    f"CREATE DATABASE {DATABASE} OWNER {OWNER}",
    # Or anybody could make functions and tables of a session's own.
    f"REVOKE ALL ON DATABASE {DATABASE} FROM PUBLIC",
    f"GRANT CONNECT ON DATABASE {DATABASE} TO {LOGIN}",
)
_PRESENT: Final = "SELECT rolname FROM pg_roles UNION ALL SELECT datname FROM pg_database"


async def ensure_roles(url: str) -> None:
    """Make what is missing, as the superuser of `url`; a start that was killed is continued."""
    connection = await asyncpg.connect(url, timeout=_TIMEOUT_S, command_timeout=_TIMEOUT_S)
    try:
        present = {row[0] for row in await connection.fetch(_PRESENT)}
        for role, statement in _ROLES.items():
            if role not in present:
                await connection.execute(statement)
        if not present >= {DATABASE, LOGIN}:
            for statement in _DATABASE[DATABASE in present :]:
                await connection.execute(statement)
    finally:
        await connection.close()


async def ensure_steps_down(url: str) -> None:
    """Make the roles that transactions step down to, as the owner of `url`; the first migration
    does the same, but a dump that is restored has them in its grants.
    """
    connection = await asyncpg.connect(url, timeout=_TIMEOUT_S, command_timeout=_TIMEOUT_S)
    try:
        present = {row[0] for row in await connection.fetch(_PRESENT)}
        for role in {APP_ROLE, PLATFORM_ROLE} - present:
            await connection.execute(f"CREATE ROLE {role} NOLOGIN")
            await connection.execute(f"GRANT {role} TO {OWNER}")
    finally:
        await connection.close()


async def drop_database(url: str) -> None:
    """Drop the database with all that is in it, as the superuser of `url`."""
    connection = await asyncpg.connect(url, timeout=_TIMEOUT_S, command_timeout=_TIMEOUT_S)
    try:
        await connection.execute(f"DROP DATABASE {DATABASE} WITH (FORCE)")
    finally:
        await connection.close()
