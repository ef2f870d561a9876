"""How decode attention parts the contexts of a step, so that no row waits for the longest.

A piece is a share of one row's keys: what a program reads for each key head. The grid that a graph
was captured with has room for as many pieces as rows and a few dozen more, and the host, which
knows how long contexts are, hands them out: short rows stay whole, a long one gets many, and a step
of few rows still fills the device. What is read at once is then bounded by the mean of a step, not
by its longest row, which beside hundreds of others one program would read for milliseconds.

Source: the planning of FlashInfer's paged decode (`scheduler.cuh`), with one size for all rows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Pieces beyond one a row: with 8 key heads, 4 programs for each multiprocessor of a large GPU.
_SPARE = 64
# Keys that are worth a program; sizes are multiples of this.
_STEP = 64


def most_pieces(num_rows: int) -> int:
    """Count the pieces that a step of this many rows has room for."""
    return num_rows + _SPARE


def count_pieces(num_keys: NDArray[np.int32], room: int) -> NDArray[np.int32]:
    """Say in how many pieces each row is read.

    Args: `num_keys`: what each row reads; 0 where it is none of decode's. `room`: the most pieces,
        no fewer than rows that read.
    """
    size = max(int(num_keys.sum()) // room // _STEP, 1) * _STEP
    while True:
        counts = -(-num_keys // size)
        if int(counts.sum()) <= room:
            return counts
        size += max(size // (4 * _STEP), 1) * _STEP
