"""Who may speak to the embedded servers over their sockets.

Nobody else can reach the sockets, if the modes of their directories are as they were made. These
are the second lock. PostgreSQL asks the kernel who is at the other end (`peer`) and lets our own
user in, as whichever role it names, and nobody else, the servers' own uid included: no password
to keep, and none to derive for each connection. Valkey cannot ask, and has a password that is made
anew at each start.

The files are ours; the servers read them by their group and cannot change them. They are written
at each start, so a data directory whose cluster trusted every local user does not any more.
"""

from __future__ import annotations

import os
import pwd
import re
import secrets
from pathlib import Path
from typing import Final

from gateway.errors import StartupFailed
from gateway.store.placement import Placement

HBA, IDENT, VALKEY = "pg_hba.conf", "pg_ident.conf", "valkey.conf"

_HBA: Final = "local all all peer map=sluice\n"
_PASSWORD: Final = re.compile(r"^requirepass (\w+)$", re.MULTILINE)


def write_access(placement: Placement) -> None:
    """Write what lets us in. Raises: `StartupFailed`: the system has no name for our user."""
    placement.access.mkdir(mode=0o700, exist_ok=True)
    placement.show(placement.access)
    name = _own_name().replace('"', '""')
    for file, text in (
        (HBA, _HBA),
        (IDENT, f'sluice "{name}" all\n'),
        (VALKEY, f"requirepass {secrets.token_hex(24)}\n"),
    ):
        fresh = placement.access / f"{file}.new"
        fresh.unlink(missing_ok=True)
        with open(fresh, "x", opener=lambda path, flags: os.open(path, flags, 0o600)) as out:
            out.write(text)
        placement.show(fresh)
        fresh.replace(placement.access / file)


def valkey_password(access: Path) -> str:
    """Read the password of the Valkey that runs."""
    found = _PASSWORD.search((access / VALKEY).read_text())
    assert found is not None, "whoever starts the server has written its password"
    return found[1]


def _own_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        raise StartupFailed(
            f"user {os.geteuid()} has no entry in the password file, which PostgreSQL needs: "
            "add one, or set SLUICE_DATABASE_URL and SLUICE_REDIS_URL"
        ) from None
