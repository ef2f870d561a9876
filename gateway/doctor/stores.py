"""The database and Redis: reachable, of an age and kind that Sluice works with."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Final

from gateway.doctor.finding import Finding, broken, ok, warning
from gateway.errors import StartupFailed, StoreUnavailable
from gateway.settings import Settings
from gateway.store.diagnosis import (
    DatabaseState,
    RedisState,
    describe_database,
    describe_redis,
    has_cluster,
    running_urls,
)
from gateway.store.embedded import EmbeddedServers
from gateway.store.logins import DatabaseUrls, embedded_urls, given_urls
from gateway.store.migrate import HEAD
from gateway.store.pools import CONNECTIONS
from gateway.store.script_escape import numbers_of, version_to_use

# The first that know what Sluice's statements and scripts ask for.
_POSTGRES_MIN, _REDIS_MIN, _VALKEY_MIN = 14, (7, 0), (7, 2)
_LATER: Final = "embedded: a start makes it"


def check_stores(settings: Settings, *, is_running: bool) -> list[Finding]:
    """Check both; `is_running` says whether a server of this data directory runs now."""
    with contextlib.ExitStack() as stack:
        try:
            database_urls, redis_url = stack.enter_context(_urls(settings, is_running=is_running))
        except StartupFailed as exc:
            found = f"the embedded servers do not start: {exc}"
            return [broken("stores", found, "mend what the message names, then run this again")]
        return [
            _check_database(database_urls) if database_urls else _absent("database", is_running),
            _check_redis(redis_url) if redis_url else _absent("redis", is_running),
        ]


def judge_database(state: DatabaseState) -> Finding:
    """Judge what a database has said of itself."""
    found = (
        f"PostgreSQL {state.version}, schema {state.schema.revision or 'none'}, role {state.role}"
    )
    major = numbers_of(state.version)[:1]
    if major < (_POSTGRES_MIN,):
        mend = f"use PostgreSQL {_POSTGRES_MIN} or newer"
        return broken("database", f"{found}: too old", mend)
    if state.schema.is_newer:
        mend = "start the newer Sluice that made this schema, or restore a backup"
        if state.schema.serves:
            return warning("database", f"{found}: newer than this Sluice ({HEAD}), served", mend)
        return broken("database", f"{found}: newer than this Sluice ({HEAD})", mend)
    if not state.schema.is_current:
        mend = "sluice serve migrates it; make a backup before"
        return warning("database", f"{found}: not at {HEAD}", mend)
    if state.is_superuser:
        mend = f'as another superuser: ALTER ROLE "{state.role}" NOSUPERUSER CREATEROLE'
        return warning("database", f"{found}: a superuser, whom no policy binds", mend)
    if state.max_connections < CONNECTIONS:
        mend = f"raise max_connections: each gateway opens at most {CONNECTIONS}"
        return warning("database", f"{found}: room for {state.max_connections} connections", mend)
    if state.owns_tables:
        mend = (
            "CREATE ROLE sluice_server LOGIN NOINHERIT, with a password; let SLUICE_DATABASE_URL "
        )
        mend += "log in as it, and SLUICE_DATABASE_OWNER_URL as now"
        return warning("database", f"{found}: the owner of the tables serves", mend)
    room = state.max_connections // CONNECTIONS
    return ok("database", f"{found}, room for {room} gateway{'s' if room > 1 else ''}")


def judge_redis(state: RedisState) -> Finding:
    """Judge what a Redis has said of itself."""
    found = f"{state.product} {state.version}"
    oldest = _VALKEY_MIN if state.product == "Valkey" else _REDIS_MIN
    if state.is_cluster:
        mend = "set SLUICE_REDIS_URL to a single server: scripts touch keys of several slots"
        return broken("redis", f"{found}, a cluster", mend)
    if numbers_of(state.version) < oldest:
        wanted = ".".join(map(str, oldest))
        return broken("redis", f"{found}: too old", f"use {state.product} {wanted} or newer")
    if state.is_replica:
        mend = "set SLUICE_REDIS_URL to the primary: a replica takes no writes"
        return broken("redis", f"{found}, a replica", mend)
    if state.eviction != "noeviction":
        mend = "redis-cli config set maxmemory-policy noeviction"
        found = f"{found}, which evicts ({state.eviction}): hard limits can be passed"
        return warning("redis", found, mend)
    if (mended := version_to_use(state.product, state.version)) is not None:
        mend = f"use {state.product} {mended} or newer"
        return warning("redis", f"{found}: scripts break out of it (CVE-2025-49844)", mend)
    return ok("redis", found)


def _absent(name: str, is_running: bool) -> Finding:
    if not is_running:
        return ok(name, _LATER)
    mend = "run the doctor with the server's own SLUICE_DATABASE_URL and SLUICE_REDIS_URL"
    return warning(name, "not asked: the running server has none in its data directory", mend)


def _check_database(urls: DatabaseUrls) -> Finding:
    mend = "start the database, or mend SLUICE_DATABASE_URL"
    try:
        return judge_database(asyncio.run(describe_database(urls)))
    except StoreUnavailable as exc:
        return broken("database", f"it cannot be used: {exc.detail}", mend)
    except Exception as exc:
        # The driver's own errors, a wrong password among them, have no common ancestor.
        return broken("database", f"it cannot be used: {exc}", mend)


def _check_redis(url: str) -> Finding:
    mend = "start Redis, or mend SLUICE_REDIS_URL"
    try:
        return judge_redis(asyncio.run(describe_redis(url)))
    except StoreUnavailable as exc:
        return broken("redis", f"it does not answer: {exc.detail}", mend)
    except ValueError as exc:
        return broken("redis", f"it cannot be used: {exc}", mend)


@contextlib.contextmanager
def _urls(
    settings: Settings, *, is_running: bool
) -> Iterator[tuple[DatabaseUrls | None, str | None]]:
    """Give the URLs of both; None where an embedded server is yet to be made."""
    database = given_urls(settings)
    redis = settings.redis_url.get_secret_value() if settings.redis_url else None
    if database is not None and redis is not None:
        yield database, redis
        return
    if is_running:
        own = running_urls(settings.data_dir)
        yield database or (own and own[0]), redis or (own and own[1])
        return
    if not has_cluster(settings.data_dir):
        yield database, redis
        return
    servers = EmbeddedServers(settings.data_dir, postgres=database is None, valkey=redis is None)
    with servers:
        yield database or embedded_urls(servers), redis or servers.redis_url()
