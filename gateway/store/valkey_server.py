"""How the embedded Valkey is run, and asked whether it is ready."""

from __future__ import annotations

import signal
import socket
from pathlib import Path
from urllib.parse import quote

from gateway.store.placement import Placement
from gateway.store.postgres_server import ENVIRONMENT
from gateway.store.server_access import VALKEY, valkey_password
from gateway.store.supervisor import ServerSpec

SOCKET = "valkey.sock"


def valkey_server(placement: Placement, sockets: Path) -> ServerSpec:
    """Say how the server is run: no TCP, nothing on disk, and an error rather than an eviction."""
    options = {
        "port": "0",
        "unixsocket": str(sockets / SOCKET),
        "unixsocketperm": "700",
        "dir": str(placement.valkey),
        "pidfile": str(placement.valkey / "valkey.pid"),
        "daemonize": "no",
        "save": "",
        "appendonly": "no",
        "maxmemory-policy": "noeviction",
        "loglevel": "warning",
    }
    return ServerSpec(
        argv=[
            str(placement.programs.valkey),
            # The password is there: what is said here, every user of the machine can read.
            str(placement.access / VALKEY),
            *(part for name, value in options.items() for part in (f"--{name}", value)),
        ],
        directory=str(placement.valkey),
        log=str(placement.logs / "valkey.log"),
        environment=ENVIRONMENT,
        user=placement.uid,
        group=placement.uid,
        stop=[(signal.SIGTERM, 5.0)],
    )


def valkey_url(sockets: Path, access: Path) -> str:
    """Return the URL of the server that runs, with its password."""
    return f"unix://:{valkey_password(access)}@{quote(str(sockets / SOCKET))}"


def valkey_answers(path: Path) -> bool:
    """Tell whether it answers a PING, be it that one has to say who one is."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        try:
            connection.connect(str(path))
            connection.sendall(b"PING\r\n")
            return connection.recv(5) in (b"+PONG", b"-NOAU")
        except OSError:
            return False
