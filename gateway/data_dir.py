"""Where the data directory is when nobody says, and what several floors find in it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

# The journal of finished requests that are not in the ledger yet.
SPOOL_DIR: Final = "spool"


def default_data_dir() -> Path:
    """Return the data directory of the user. Raises: `OSError`: there is no home."""
    try:
        return Path.home() / ".local/share/sluice"
    except RuntimeError:
        raise FileNotFoundError(
            "there is no home directory: set --data-dir or SLUICE_DATA_DIR"
        ) from None
