"""How decode attention parts the contexts of a step, so that no row waits for the longest.

A piece is a share of one row's keys: what a program reads for each key head. A device runs a *wave*
of pieces at once, so many as it has room for programs, over the key heads that it holds. The grid
that a graph was captured with has room for a wave or some more, and the host, which knows how long
contexts are, hands them out.

How long a step's pieces should be is a trade. Where they are too long, those of the last wave run
alone: 96 whole rows in waves of 66 take as long as 132. Where they are too short, programs begin
and end more than they read. So some lengths, from the longest row down to a 256th of it, are priced
by the time that they would take, and the cheapest is taken: the waves that its pieces make, times
their mean length, or a wave's share of all keys and by how much the longest piece exceeds the mean,
whichever is more; and for each wave what a program costs beside its keys.

Source: the planning of FlashInfer's paged decode (`scheduler.cuh`), with one length for all rows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Keys that are worth a program; lengths are multiples of this.
_STEP = 64
# What a program costs beside the keys that it reads, in keys.
_PROGRAM_KEYS = 64
# In how many pieces the longest row is read: whole numbers, as those of equal rows are.
_PARTS = np.array((1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256))


def wave_of(num_multiprocessors: int, programs_each: int, num_kv_heads: int) -> int:
    """Count the pieces that run at once; `num_kv_heads` are those that the device holds."""
    return max(num_multiprocessors * programs_each // num_kv_heads, 1)


def most_pieces(num_rows: int, wave: int) -> int:
    """Count the pieces that a step of this many rows has room for.

    A few rows fill one wave evenly. More room would cost them: programs that find nothing to do
    take turns with others all the same.
    """
    return wave if 8 * num_rows <= wave else 2 * (num_rows + wave)


def count_pieces(num_keys: NDArray[np.int32], room: int, wave: int) -> NDArray[np.int32]:
    """Say in how many pieces each row is read.

    Args: `num_keys`: what each row reads; 0 where it is none of decode's. `room`: the most pieces,
        no fewer than rows that read. `wave`: how many run at once.
    """
    total = int(num_keys.sum())
    if not total:
        return np.zeros_like(num_keys)
    longest = -(-int(num_keys.max()) // _PARTS)
    lengths = (-(-longest // _STEP) * _STEP).astype(np.int32)
    # [lengths, rows]
    counts = -(-num_keys // lengths[:, None])
    sums = counts.sum(axis=1)
    waves, mean = -(-sums // wave), total / sums
    # Of unequal pieces it is one of the longer ones that ends last.
    keys = np.maximum(waves * mean, total / wave + lengths - mean) + waves * _PROGRAM_KEYS
    # Whole rows always fit.
    cheapest: NDArray[np.int32] = counts[int(np.where(sums <= room, keys, np.inf).argmin())]
    return cheapest
