"""Be another local user for a moment, as root can: what that one reaches, and what not."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.store.postgres_server import start_packet

NOBODY = 65534


@contextmanager
def another_user(uid: int = NOBODY, gid: int = NOBODY) -> Iterator[None]:
    """Act as a user and a group while the block runs, in all threads. Root alone may."""
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(gid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def postgres_says(path: Path, user: str) -> bytes:
    """Ask a PostgreSQL for a session; return what it says: `R` lets in, the rest is an error."""
    return _said(path, start_packet(user))


def valkey_says(path: Path, command: bytes = b"CONFIG GET dir") -> bytes:
    """Send one command to a Valkey, without having said who one is."""
    return _said(path, command + b"\r\n")


def _said(path: Path, question: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        connection.connect(str(path))
        connection.sendall(question)
        return connection.recv(4096)
