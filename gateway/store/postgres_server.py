"""How the embedded PostgreSQL is made, run, and asked whether it is ready."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
from pathlib import Path
from urllib.parse import quote

from gateway.errors import StartupFailed
from gateway.store.placement import Placement
from gateway.store.server_access import HBA, IDENT
from gateway.store.supervisor import ServerSpec

OWNER, LOGIN, SUPERUSER = "sluice_owner", "sluice_server", "postgres"
DATABASE, MAINTENANCE = "sluice", "postgres"
SOCKET = ".s.PGSQL.5432"
MAJOR = "18"

# All that the servers see of our environment: the rest, secrets perhaps, is none of theirs.
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}

_PROTOCOL_3 = 196_608
_OPTIONS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "64",
    "shared_buffers": "32MB",
    "max_wal_size": "256MB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_logical_replication_workers": "0",
    "max_parallel_workers": "0",
    "io_method": "sync",
    "jit": "off",
    "log_min_messages": "warning",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


def socket_url(sockets: Path, user: str, database: str) -> str:
    """Return the URL of a database of the server that listens in `sockets`."""
    return f"postgresql://{user}@/{database}?host={quote(str(sockets), safe='')}"


def postgres_server(placement: Placement, sockets: Path) -> ServerSpec:
    """Say how the server is run. A fast shutdown comes first, then one that needs recovery."""
    options = [part for name, value in _OPTIONS.items() for part in ("-c", f"{name}={value}")]
    return ServerSpec(
        argv=[
            str(placement.programs.postgres_bin / "postgres"),
            *("-D", str(placement.cluster), "-k", str(sockets), *options),
            *("-c", f"hba_file={placement.access / HBA}"),
            *("-c", f"ident_file={placement.access / IDENT}"),
        ],
        directory=str(placement.cluster),
        log=str(placement.logs / "postgres.log"),
        environment=ENVIRONMENT,
        user=placement.uid,
        group=placement.uid,
        stop=[(signal.SIGINT, 10.0), (signal.SIGQUIT, 3.0)],
    )


def ensure_cluster(placement: Placement) -> None:
    """Make the cluster, unless it is there; its roles come when it runs (`postgres_roles`).

    It grows under another name and is renamed when whole: a start that was killed halfway
    leaves nothing that a later one could take for a database.
    Raises: `StartupFailed`: it cannot be made, or it is of another major version.
    """
    cluster = placement.cluster
    if cluster.exists():
        version = (cluster / "PG_VERSION").read_text().strip()
        if version != MAJOR:
            raise StartupFailed(
                f"{cluster} belongs to PostgreSQL {version}, this is {MAJOR}: dump it with "
                "the sluice release that made it and restore it into a new data directory"
            )
        return
    for stale in placement.home.glob("postgres.*"):
        shutil.rmtree(stale, ignore_errors=True)
    fresh = Path(tempfile.mkdtemp(prefix="postgres.", dir=placement.home))
    if placement.uid is not None and placement.listed_uid is not None:
        os.chown(fresh, placement.listed_uid, placement.uid)
    programs = placement.programs.postgres_bin
    _run(
        [
            *(str(programs / "initdb"), "-D", str(fresh), "-U", SUPERUSER),
            *("--auth-local=peer", "--auth-host=reject", "--encoding=UTF8"),
            *("--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"),
            "--no-instructions",
        ],
        fresh,
        placement,
    )
    placement.take_over(fresh)
    fresh.rename(cluster)


def start_packet(user: str) -> bytes:
    """Return what asks for a session (protocol 3.0)."""
    parameters = f"user\0{user}\0database\0{MAINTENANCE}\0\0".encode()
    return struct.pack("!ii", 8 + len(parameters), _PROTOCOL_3) + parameters


def postgres_answers(path: Path) -> bool:
    """Tell whether a session can be opened, by opening one."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        try:
            connection.connect(str(path))
            connection.sendall(start_packet(SUPERUSER))
            answer = connection.recv(1)
            if answer == b"R":
                connection.sendall(b"X\0\0\0\4")
            return answer == b"R"
        except OSError:
            return False


def _run(argv: list[str], directory: Path, placement: Placement) -> None:
    try:
        done = subprocess.run(
            argv,
            cwd=directory,
            env=ENVIRONMENT,
            user=placement.listed_uid,
            group=placement.uid,
            extra_groups=[] if placement.uid is not None else None,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    except (PermissionError, subprocess.SubprocessError) as exc:
        raise StartupFailed(
            f"cannot run {argv[0]} as uid {placement.listed_uid}: start sluice as an ordinary user"
        ) from exc
    if done.returncode:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        raise StartupFailed(
            f"{Path(argv[0]).name} could not make the embedded database: "
            f"{lines[-1].strip() if lines else f'exit status {done.returncode}'}"
        )
