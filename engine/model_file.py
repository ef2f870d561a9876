"""Reads the small files of a model directory: whole, and only what a model's files can be.

A directory may come from anywhere. A pipe in it would be waited for without end, and a file of
gigabytes be read into memory before anybody looks at it.
"""

from __future__ import annotations

import stat
from pathlib import Path

from engine.errors import ModelError

# The largest tokenizer.json of a public model has 35 MB.
SIZE_MAX_BYTES = 256 << 20


def read_model_file(path: Path) -> bytes:
    """Return what the file holds.

    Raises: `ModelError`: it is none that is read. `OSError`: it is not there, or not readable.
    """
    check_model_file(path, SIZE_MAX_BYTES)
    return path.read_bytes()


def check_model_file(path: Path, size_max_bytes: int | None = None) -> None:
    """Look at a file before somebody else reads it; links are followed. Raises: as above."""
    status = path.stat()
    # A directory says of itself what it is when it is read.
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        raise ModelError(f"{path}: is a pipe, a socket or a device; put the model's own file there")
    if size_max_bytes is not None and status.st_size > size_max_bytes:
        raise ModelError(
            f"{path}: has {status.st_size >> 20:,} MiB, and at most {size_max_bytes >> 20:,} are "
            "read; fetch the file again"
        )
