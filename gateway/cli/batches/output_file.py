"""Saving a file of the server's: it has its name only once it is whole."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from gateway.cli.exits import CliError, Exit


def save(pieces: Iterable[bytes], path: Path, *, force: bool) -> int:
    """Write pieces to a temporary name beside `path`, then to it; returns how many bytes.

    Raises: `CliError`: the file is there and not `force`, or cannot be written.
    """
    _refuse_existing(path, force)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with partial.open("xb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
            size_bytes = file.tell()
        # Somebody else may have saved it meanwhile.
        _refuse_existing(path, force)
        partial.replace(path)
    except OSError as exc:
        raise CliError(f"{path} cannot be written: {exc.strerror}") from None
    finally:
        partial.unlink(missing_ok=True)
    return size_bytes


def _refuse_existing(path: Path, force: bool) -> None:
    if path.exists() and not force:
        raise CliError(f"{path} exists: name another with --output, or --force", Exit.CONFLICT)
