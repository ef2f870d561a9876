"""What a doctor wants to know of the stores. Nothing is changed in them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from redis.exceptions import RedisError
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.errors import StoreUnavailable
from gateway.store.database import Database
from gateway.store.logins import DatabaseUrls
from gateway.store.migrate import Schema, schema_of
from gateway.store.placement import ACCESS
from gateway.store.postgres_server import DATABASE, LOGIN, OWNER, socket_url
from gateway.store.redis import connect_redis, is_cluster
from gateway.store.script_escape import product_of
from gateway.store.valkey_server import valkey_url

_DESCRIBE: Final = text(
    "SELECT current_setting('server_version'), rolname, rolsuper, "
    "current_setting('max_connections')::int "
    "- current_setting('superuser_reserved_connections')::int, "
    "EXISTS (SELECT FROM pg_class WHERE relname = 'usage_events' "
    "AND pg_has_role(current_user, relowner, 'MEMBER')) "
    "FROM pg_roles WHERE rolname = current_user"
)


@dataclass(frozen=True, slots=True)
class DatabaseState:
    """Describe a database.

    `owns_tables` says of `role`, as whom the server logs in, that it is their owner or can be.
    `max_connections` are those that its server has for anybody.
    """

    version: str
    role: str
    is_superuser: bool
    schema: Schema
    max_connections: int
    owns_tables: bool


@dataclass(frozen=True, slots=True)
class RedisState:
    """Describe a Redis or a Valkey."""

    product: str
    version: str
    is_cluster: bool
    eviction: str
    is_replica: bool = False


async def describe_database(urls: DatabaseUrls) -> DatabaseState:
    """Ask a database. Raises: `StoreUnavailable`; `ValueError`: a URL is none."""
    async with _opened(urls.owner) as connection:
        schema = await schema_of(connection)
    async with _opened(urls.server) as connection:
        row = (await connection.execute(_DESCRIBE)).one()
    return DatabaseState(str(row[0]), row[1], row[2], schema, row[3], row[4])


@asynccontextmanager
async def _opened(url: str) -> AsyncIterator[AsyncConnection]:
    database = Database(url)
    try:
        async with database.as_itself() as connection:
            yield connection
    finally:
        await database.close()


async def describe_redis(url: str) -> RedisState:
    """Ask a Redis. Raises: `StoreUnavailable`; `ValueError`: the URL is none."""
    redis = connect_redis(url)
    try:
        info = await redis.info()
    except (RedisError, OSError) as exc:
        raise StoreUnavailable(detail=str(exc)) from exc
    finally:
        await redis.aclose()
    product, version = product_of(info)
    return RedisState(
        product=product,
        version=version,
        is_cluster=is_cluster(info),
        eviction=str(info.get("maxmemory_policy", "noeviction")),
        is_replica=info.get("role", "master") != "master",
    )


def has_cluster(data_dir: Path) -> bool:
    """Tell whether a first start has made the embedded database."""
    return (_home(data_dir) / "postgres").is_dir()


def running_urls(data_dir: Path) -> tuple[DatabaseUrls, str] | None:
    """Return the URLs of the embedded database and Redis that a running server has, or None."""
    home = _home(data_dir)
    sockets = _sockets(home)
    if sockets is None:
        return None
    server, owner = (socket_url(sockets, user, DATABASE) for user in (LOGIN, OWNER))
    return DatabaseUrls(server, owner), valkey_url(sockets, home / ACCESS)


def running_sockets(data_dir: Path) -> Path | None:
    """Return where the embedded PostgreSQL of a running server listens, or None."""
    return _sockets(_home(data_dir))


def _home(data_dir: Path) -> Path:
    record = data_dir / "embedded-home"
    return Path(record.read_text().strip()) if record.exists() else data_dir


def _sockets(home: Path) -> Path | None:
    try:
        # PostgreSQL writes there what it listens on: line 5 is the socket's directory.
        return Path((home / "postgres" / "postmaster.pid").read_text().splitlines()[4])
    except (OSError, IndexError):
        sockets = home / "sockets"
        return sockets if sockets.is_dir() else None
