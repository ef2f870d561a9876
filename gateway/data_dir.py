"""Where the data directory is when nobody says."""

from __future__ import annotations

from pathlib import Path


def default_data_dir() -> Path:
    """Return the data directory of the user. Raises: `OSError`: there is no home."""
    try:
        return Path.home() / ".local/share/sluice"
    except RuntimeError:
        raise FileNotFoundError(
            "there is no home directory: set --data-dir or SLUICE_DATA_DIR"
        ) from None
