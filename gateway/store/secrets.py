"""The root secret of a data directory: 32 random bytes in `<data_dir>/secrets/root`.

Gateways that share one database must share this file. Losing it makes every stored key useless;
a copy of the database without it is useless to a thief.
"""

from __future__ import annotations

import os
from pathlib import Path

from gateway.credentials import Secrets, is_weak
from gateway.errors import StartupFailed


def open_secrets(data_dir: Path) -> Secrets:
    """Read the root secret, or draw it when there is none.

    Raises: `StartupFailed`: others may read the file, or it is damaged.
    """
    path = secret_path(data_dir)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        _create(path, os.urandom(32))
    if path.stat().st_mode & 0o077:
        raise StartupFailed(f"other users may read {path}: run 'chmod 600 {path}'")
    try:
        root = path.read_bytes()
        if is_weak(root):
            raise ValueError("nobody drew it")
        return Secrets(root)
    except ValueError:
        raise StartupFailed(f"{path} is damaged: restore it from a backup") from None


def secret_path(data_dir: Path) -> Path:
    """Return where the root secret of a data directory is."""
    return data_dir / "secrets" / "root"


def put_secret(data_dir: Path, secrets: Secrets) -> None:
    """Write a root secret that is known into a data directory that has none, or this one."""
    path = secret_path(data_dir)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _create(path, secrets.root)
    assert open_secrets(data_dir).root == secrets.root, "who puts it has looked at what was there"


def _create(path: Path, root: bytes) -> None:
    """Write under another name and link: a crash leaves no half secret, a race has one winner."""
    fresh = path.with_name(f"root.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(root)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(fresh, path)
    except FileExistsError:
        pass
    finally:
        fresh.unlink()
