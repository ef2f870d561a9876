"""Private stores that were made once, to be copied: ten times quicker than to make them anew.

A copy has the newest schema and no rows, so that the start which finds it is a first one.
"""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import asyncpg

from gateway.store.database import Database
from gateway.store.embedded import EmbeddedServers
from gateway.store.logins import let_in
from gateway.store.migrate import upgrade
from gateway.store.postgres_server import OWNER, SUPERUSER


class MadeStores:
    """Hold the data directory that is copied; it is never used itself."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir

    @classmethod
    def make(cls, data_dir: Path) -> MadeStores:
        """Make both stores by a start, migrate them, and stop."""
        with EmbeddedServers(data_dir) as servers:
            asyncio.run(_migrate(servers))
        return cls(data_dir)

    def copy(self, data_dir: Path) -> Path:
        """Copy them to a directory that is not there yet, and return it."""
        subprocess.run(["cp", "-a", str(self._data_dir), str(data_dir)], check=True)
        return data_dir


async def _migrate(servers: EmbeddedServers) -> None:
    connection = await asyncpg.connect(servers.database_url(SUPERUSER))
    # Holds for the copies too: processes are killed here, but no test cuts the power.
    await connection.execute("ALTER SYSTEM SET fsync = off")
    await connection.close()
    owner = Database(servers.database_url(OWNER))
    database = Database(servers.database_url())
    await upgrade(owner)
    await let_in(owner, database)
    await owner.close()
    await database.close()
