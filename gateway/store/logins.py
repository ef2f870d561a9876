"""Two logins to one database: the owner of its tables migrates, the server serves.

What reaches a connection of the server can then change rows, as its roles may, and no table, policy
or trigger: it owns nothing, and cannot become who does. The owner's connections are closed once the
schema is up to date. Where `sluice db upgrade` has migrated before, a server is given its own login
alone, and reads which revision the schema is at. Where both are one URL and that is the owner's,
the owner serves, as it did before there were two.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from gateway.errors import StartupFailed
from gateway.settings import Settings
from gateway.store.database import APP_ROLE, PLATFORM_ROLE, Database
from gateway.store.embedded import EmbeddedServers
from gateway.store.migrate import schema_of, take_advisory_lock
from gateway.store.postgres_server import OWNER

# Trying is the one test that means the same before and after PostgreSQL 16, which tells the right
# to step down apart from membership. Each is judged by who logged in.
_TRY = text("SELECT set_config('role', :app, true), set_config('role', :platform, true)")
_READABLE = text(f"GRANT SELECT ON alembic_version TO {PLATFORM_ROLE}")


@dataclass(frozen=True, slots=True)
class DatabaseUrls:
    """Hold where the server logs in, and where who owns the tables does."""

    server: str
    owner: str


def given_urls(settings: Settings) -> DatabaseUrls | None:
    """Return what the settings say; None where the database is an embedded one."""
    if settings.database_url is None:
        return None
    owner = settings.database_owner_url or settings.database_url
    return DatabaseUrls(settings.database_url.get_secret_value(), owner.get_secret_value())


def embedded_urls(servers: EmbeddedServers) -> DatabaseUrls:
    """Return those of embedded servers that run."""
    return DatabaseUrls(servers.database_url(), servers.database_url(OWNER))


async def let_in(owner: Database, server: Database) -> None:
    """See that the server's login can do its work; the owner grants what is missing.

    That is to step down to its roles, and to read there at which revision the schema is.

    Raises: `StartupFailed`: the owner may not; `StoreUnavailable`.
    """
    if await _can_serve(server):
        return
    async with server.as_itself() as connection:
        name = await connection.scalar(text("SELECT quote_ident(current_user)"))
    grant = f"GRANT {APP_ROLE}, {PLATFORM_ROLE} TO {name}"
    try:
        async with owner.as_itself() as connection:
            await take_advisory_lock(connection)
            await connection.execute(text(grant))
            await connection.execute(_READABLE)
    except DBAPIError as exc:
        raise StartupFailed(
            f"the role {name} of SLUICE_DATABASE_URL cannot take on its roles, and the owner may "
            f"not let it ({exc.orig}): as a superuser, {grant}"
        ) from exc


async def _can_serve(server: Database) -> bool:
    try:
        async with server.as_itself() as connection:
            await connection.execute(_TRY, {"app": APP_ROLE, "platform": PLATFORM_ROLE})
        async with server.as_itself() as connection:
            await schema_of(connection)
    except DBAPIError:
        return False
    return True
