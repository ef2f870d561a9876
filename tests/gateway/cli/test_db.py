"""`sluice db upgrade` and `current`, on a PostgreSQL that has nothing yet."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from pydantic import SecretStr
from sqlalchemy import text

from gateway.errors import StartupFailed
from gateway.settings import Settings
from gateway.store import open_store
from gateway.store.database import Database
from gateway.store.migrate import HEAD
from gateway.store.postgres_server import LOGIN, OWNER
from tests.gateway.cli.admin_server import sluice_here


def test_what_the_owner_upgraded_serves_without_the_owner(
    empty_database_url: str, redis_url: str, tmp_path: Path
) -> None:
    """A server that has its own login alone is refused before, says how to go on, and serves after;
    `current` tells the two apart, and a second upgrade finds nothing to do."""
    server_url = empty_database_url.replace(OWNER, LOGIN, 1)
    given = {"SLUICE_DATABASE_URL": server_url, "SLUICE_DATABASE_OWNER_URL": empty_database_url}
    settings = Settings(
        data_dir=tmp_path / "data",
        database_url=SecretStr(server_url),
        redis_url=SecretStr(redis_url),
        init_tenants=(),
    )

    async def started_as() -> str:
        async with open_store(settings) as store:
            assert store.first_start is not None
            assert store.first_start.keys == ()
            async with store.database.as_itself() as connection:
                row = await connection.exec_driver_sql("SELECT session_user")
                return str(row.scalar_one())

    before = sluice_here("db", "current", **given)
    assert (before.returncode, before.stdout) == (1, "")
    assert f"needs {HEAD}" in before.stderr
    with pytest.raises(StartupFailed, match="'sluice db upgrade' does it"):
        asyncio.run(started_as())

    done = sluice_here("db", "upgrade", **given)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{HEAD}\n", "It was empty.\n")
    again = sluice_here("db", "upgrade", "--json", **given)
    assert json.loads(again.stdout) == {"revision": HEAD, "was": HEAD}
    # As the server's own login, which may read it now.
    after = sluice_here("db", "current", "--json", SLUICE_DATABASE_URL=server_url)
    assert (after.returncode, json.loads(after.stdout)["is_current"]) == (0, True)
    assert asyncio.run(started_as()) == LOGIN

    for readable_from, code, said in ((HEAD, 0, "serves this one too"), ("9998", 1, "any more")):
        asyncio.run(_become_newer(empty_database_url, readable_from))
        newer = sluice_here("db", "current", SLUICE_DATABASE_URL=server_url)
        assert (newer.returncode, newer.stdout) == (code, "9999\n")
        assert said in newer.stderr
        left = sluice_here("db", "upgrade", **given)
        assert (left.returncode, left.stdout) == (code, "" if code else "9999\n")
        assert ("newer release's" if code == 0 else "start the newer one") in left.stderr


async def _become_newer(url: str, readable_from: str) -> None:
    database = Database(url)
    async with database.as_itself() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        says = f"'readable from {readable_from}'"
        await connection.execute(text(f"COMMENT ON TABLE alembic_version IS {says}"))
    await database.close()


def test_an_embedded_database_is_its_servers(tmp_path: Path) -> None:
    """Without a URL there is nothing to migrate, and the line says who does it."""
    done = sluice_here("db", "upgrade", SLUICE_DATA_DIR=str(tmp_path))
    assert done.returncode == 1
    assert "migrated by that server" in done.stderr


def test_a_url_that_is_none_is_one_line() -> None:
    """Which setting to mend is said, without what is secret in it."""
    given = {"SLUICE_DATABASE_OWNER_URL": "mysql://owner:very-secret@db.example/sluice"}
    done = sluice_here("db", "upgrade", SLUICE_DATABASE_URL="postgresql://db.example/a", **given)
    assert done.returncode == 1
    assert "SLUICE_DATABASE_OWNER_URL cannot be used" in done.stderr
    assert "very-secret" not in done.stderr
