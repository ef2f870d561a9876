"""The mark of a data directory into which a restore writes, or died while it wrote."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from gateway.errors import StartupFailed
from gateway.store.backup.copying import sync_directory

NAME: Final = "restore-unfinished"


def refuse_half_restored(data_dir: Path) -> None:
    """Raise `StartupFailed` where a restore has not come to its end."""
    if is_marked(data_dir):
        raise StartupFailed(
            f"a restore into {data_dir} was not finished: run 'sluice db restore' again, which "
            "begins anew, or choose another with --data-dir"
        )


def is_marked(data_dir: Path) -> bool:
    return (data_dir / NAME).exists()


def set_mark(data_dir: Path) -> None:
    """Put it on the disk, unless it is there."""
    os.close(os.open(data_dir / NAME, os.O_WRONLY | os.O_CREAT, 0o600))
    sync_directory(data_dir)


def take_mark(data_dir: Path) -> None:
    """Remove it, once all that was restored is on the disk."""
    os.sync()
    (data_dir / NAME).unlink()
    sync_directory(data_dir)
