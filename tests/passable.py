"""Where tests put data directories."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


@contextmanager
def passable_directory() -> Iterator[Path]:
    """Make a directory that other users may pass through, as pytest's own are not.

    Under root the servers run as another user, and would leave the data directory for a place
    of the machine's.
    """
    with TemporaryDirectory(prefix="sluice-test-") as name:
        Path(name).chmod(0o711)
        yield Path(name)
