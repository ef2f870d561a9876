"""Reaching the database of a start, or of a command: with patience, and one line if in vain."""

from __future__ import annotations

from typing import Final

from gateway.errors import StartupFailed, StoreUnavailable
from gateway.settings import Settings
from gateway.store.database import Database, connect_patiently, database_place

# For a database that is not there, and for one that says that it is starting or full. A host that
# swallows packets is given up by one try, which takes 5 s.
_SILENT_S: Final = 3.0
_STARTING_S: Final = 120.0


async def reach_database(url: str, name: str) -> Database:
    """Open a database; `name` is of the setting that has its URL. Raises: `StartupFailed`."""
    try:
        return await connect_patiently(url, silent_s=_SILENT_S, told_s=_STARTING_S)
    except StoreUnavailable as exc:
        raise StartupFailed(
            f"the database at {database_place(url)} cannot be used: {exc.detail}; start it, or "
            f"mend {name}"
        ) from exc
    except Exception as exc:
        raise StartupFailed(f"{name} cannot be used: {exc}") from exc


def owner_name(settings: Settings) -> str:
    """Name the setting by which the owner of the tables logs in."""
    if settings.database_owner_url is None:
        return "SLUICE_DATABASE_URL"
    return "SLUICE_DATABASE_OWNER_URL"
