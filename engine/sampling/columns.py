"""Columns of a state table: one row a slot, as wide as its longest row needs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def widened(table: NDArray[np.int32], width: int, max_width: int) -> NDArray[np.int32]:
    """Return the table with at least `width` columns, twice as many as before if it must grow."""
    have = table.shape[1]
    if width <= have:
        return table
    assert width <= max_width, f"a sequence of {width} entries in rows of at most {max_width}"
    wider = np.zeros((table.shape[0], min(max(width, 2 * have), max_width)), np.int32)
    wider[:, :have] = table
    return wider
