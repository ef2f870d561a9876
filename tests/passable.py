"""Where tests put data directories."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

_MEMORY = Path("/dev/shm")
# Two processes of tests with a few stores each; a container's usual 64 MiB would be full at once.
_ROOM_BYTES = 3 << 30


@contextmanager
def passable_directory(*, on_disk: bool = False) -> Iterator[Path]:
    """Make a directory that other users may pass through, as pytest's own are not.

    Under root the servers run as another user, and would leave the data directory for a place
    of the machine's. It is in memory where that has room, unless `on_disk`: a database that is
    copied as six hundred files costs a disk's file system ten times as much work.
    """
    parent = None if on_disk or not _has_room(_MEMORY) else _MEMORY
    with TemporaryDirectory(prefix="sluice-test-", dir=parent) as name:
        Path(name).chmod(0o711)
        yield Path(name)


def _has_room(directory: Path) -> bool:
    """Tell whether stores fit there, and the programs that root copies beside them would run."""
    if not directory.is_dir() or not os.access(directory, os.W_OK):
        return False
    runs = not os.statvfs(directory).f_flag & os.ST_NOEXEC
    return runs and shutil.disk_usage(directory).free >= _ROOM_BYTES
