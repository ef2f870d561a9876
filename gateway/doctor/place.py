"""The data directory, the disk, the ports, and the server that may be running there."""

from __future__ import annotations

import errno
import os
import shutil
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gateway.doctor.finding import Finding, broken, ok, warning
from gateway.domain.address import is_loopback
from gateway.http.plain_admin import WAY_OUT, exposed
from gateway.services.local_access import LocalAccess, read_local_access
from gateway.settings import Settings

if TYPE_CHECKING:
    import httpx

_TIMEOUT_S: Final = 5.0
_DISK_TIGHT_BYTES, _DISK_FULL_BYTES = 2 << 30, 256 << 20


def check_data_dir(data_dir: Path) -> Finding:
    """Check that the directory is there, ours and private, and its secret too."""
    name, secret = "data directory", data_dir / "secrets" / "root"
    if not data_dir.exists():
        if os.access(_existing(data_dir), os.W_OK | os.X_OK):
            return ok(name, f"{data_dir}: the first start makes it")
        return broken(name, f"{data_dir} cannot be made", "choose another with --data-dir")
    status = data_dir.stat()
    if not data_dir.is_dir():
        return broken(name, f"{data_dir} is no directory", "choose another with --data-dir")
    if status.st_uid != os.geteuid():
        mend = f"run as user {status.st_uid}, or choose another with --data-dir"
        return broken(name, f"{data_dir} belongs to user {status.st_uid}", mend)
    if secret.exists() and secret.stat().st_mode & 0o077:
        return broken(name, f"other users may read {secret}", f"chmod 600 {secret}")
    # 0710 is what it has where root runs the servers under another uid.
    if status.st_mode & 0o067:
        return warning(name, f"other users may look into {data_dir}", f"chmod 700 {data_dir}")
    return ok(name, f"{data_dir}, private")


def check_disk(data_dir: Path) -> Finding:
    """Check the room where the database grows."""
    free = shutil.disk_usage(_existing(data_dir)).free
    found = f"{free / (1 << 30):.1f} GiB free at {_existing(data_dir)}"
    mend = "make room, or choose a data directory on another disk with --data-dir"
    if free < _DISK_FULL_BYTES:
        return broken("disk", found, mend)
    return warning("disk", found, mend) if free < _DISK_TIGHT_BYTES else ok("disk", found)


def check_files(file_storage: str | None) -> list[Finding]:
    """Check that tenants' files can be written where that is a directory of its own.

    A start does not end for it: all but files and batches is served without.
    """
    if file_storage is None or "://" in file_storage:
        return []
    name, directory = "files", Path(file_storage).absolute()
    mend = "mount it or let this user write to it, or mend SLUICE_FILE_STORAGE"
    if directory.exists() and not directory.is_dir():
        return [broken(name, f"{directory} is no directory", mend)]
    if not directory.parent.exists():
        return [broken(name, f"{directory} cannot be made: there is no {directory.parent}", mend)]
    if not os.access(directory if directory.exists() else directory.parent, os.W_OK | os.X_OK):
        return [broken(name, f"{directory} cannot be written to", mend)]
    is_new = "" if directory.exists() else ": the first upload makes it"
    return [ok(name, f"{directory}{is_new}")]


def find_running(data_dir: Path) -> tuple[LocalAccess | None, Finding]:
    """Find the server of this data directory and ask how it is."""
    try:
        access = read_local_access(data_dir)
    except PermissionError:
        return None, broken("server", "another user's", "run the doctor as that user")
    if access is None:
        holder = lock_holder(data_dir)
        if holder is None:
            return None, ok("server", "none is running here")
        found = f"process {holder} holds the data directory: it is starting, or on its way out"
        return None, warning("server", found, "run the doctor again in a moment")
    return access, _ask(access)


def check_port(
    name: str, host: str, port: int, own_url: str | None, *, is_starting: bool = False
) -> Finding:
    """Check that a port is free or our own server's. `own_url` is where that listens; one that
    `is_starting` listens already and does not say where.
    """
    if port == 0:
        return ok(name, f"any free port of {host}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError as exc:
            if exc.errno == errno.EADDRINUSE and own_url and _port_of(own_url) == port:
                return ok(name, f"{port}, our own server's")
            if exc.errno == errno.EADDRINUSE and is_starting:
                return ok(name, f"{port} is taken, it seems by the server that starts")
            found = f"cannot listen on {host}:{port}: {exc.strerror}"
            return broken(name, found, f"see 'ss -ltnp sport = :{port}', or choose another port")
    return ok(name, f"{port} is free")


def check_admin_address(settings: Settings) -> Finding:
    """Check that no admin token goes over a network in plain text, unless that is meant."""
    name, host = "admin address", settings.admin_host
    try:
        addresses = {str(found[4][0]) for found in socket.getaddrinfo(host or "0.0.0.0", None)}
    except OSError as exc:
        return broken(name, f"{host} is no address: {exc.strerror}", "mend SLUICE_ADMIN_HOST")
    for address in sorted(addresses):
        if (fault := exposed(settings, address)) is not None:
            return broken(name, fault, WAY_OUT)
    if all(map(is_loopback, addresses)):
        return ok(name, f"{host}, this machine alone")
    found = f"{host}: plain HTTP, tokens included, as SLUICE_ADMIN_ALLOW_PLAIN says"
    return warning(name, found, "see that nobody but administrators is on that network")


def lock_holder(data_dir: Path) -> int | None:
    """Return the process that holds the directory's lock, by reading alone: taking it, however
    briefly, could make a start fail. None too where the system does not tell."""
    try:
        inode = (data_dir / "lock").stat().st_ino
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        fields = line.split()
        if len(fields) > 5 and fields[1] == "FLOCK" and fields[5].endswith(f":{inode}"):
            return int(fields[4])
    return None


def _ask(access: LocalAccess) -> Finding:
    import httpx

    where = f"process {access.pid} at {access.api}"
    mend = f"look at its log, then restart it: kill {access.pid}"
    try:
        with httpx.Client(timeout=_TIMEOUT_S, trust_env=False) as client:
            live = client.get(f"{access.admin}/livez")
            ready = client.get(f"{access.admin}/readyz")
    except httpx.HTTPError as exc:
        return broken("server", f"{where} does not answer: {exc}", mend)
    if live.status_code != 200:
        return broken("server", f"{where} is not alive: {_word(live)}", mend)
    if ready.status_code != 200:
        return warning("server", f"{where} is not ready: {_word(ready)}", "look at its log")
    return ok("server", f"{where} is ready")


def _word(answer: httpx.Response) -> str:
    """Read the word of a probe; an older server's answer is no JSON."""
    try:
        return str(answer.json()["status"])
    except (ValueError, KeyError, TypeError):
        return "it does not say why"


def _existing(path: Path) -> Path:
    return next(parent for parent in (path, *path.absolute().parents) if parent.exists())


def _port_of(url: str) -> int | None:
    from urllib.parse import urlsplit

    return urlsplit(url).port
