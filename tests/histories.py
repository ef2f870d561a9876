"""How many random histories a test draws: a few in `make test`, many times as many in a soak."""

from __future__ import annotations

import os
from typing import Final

FACTOR: Final = "SLUICE_HISTORIES_FACTOR"


def num_histories(few: int) -> int:
    """Return how many to draw where `make test` draws `few`."""
    return few * int(os.environ.get(FACTOR, "1"))
