"""How the command line finds and enters a server on the same machine.

While it runs, a server keeps `<data_dir>/run/server.json`, readable by its user alone: its pid,
its addresses and an admin token that this process alone accepts. Whoever can read the file
could read the root secret beside it, so it gives away nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gateway.credentials import ADMIN_PREFIX, Token, new_token


@dataclass(frozen=True, slots=True)
class LocalAccess:
    """Say where a running server is and what opens its admin API. Addresses are base URLs."""

    pid: int
    api: str
    admin: str
    local_token: str = field(repr=False)


def new_local_token() -> Token:
    """Draw the admin token of this process; give it to `AdminAuthenticator` and `announce`."""
    return new_token(ADMIN_PREFIX)


@contextmanager
def announced(data_dir: Path, *, api: str, admin: str, token: Token) -> Iterator[None]:
    """Keep the file while the server runs; on leaving, remove it."""
    path = _path(data_dir)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    access = LocalAccess(pid=os.getpid(), api=api, admin=admin, local_token=token.text)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(asdict(access), file)
    fresh.replace(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def read_local_access(data_dir: Path) -> LocalAccess | None:
    """Return the running server of a data directory, or None.

    A file left by a killed process counts as none. Raises: `PermissionError`: the server is
    another user's.
    """
    try:
        access = LocalAccess(**json.loads(_path(data_dir).read_text()))
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError):
        return None
    return access if _is_alive(access.pid) else None


def _path(data_dir: Path) -> Path:
    return data_dir / "run" / "server.json"


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
