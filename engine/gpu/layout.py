"""Where one step's numbers lie in one buffer, so that they are uploaded at once.

The same layout is read over the host's buffer, which is filled, and over the device's, from which
the kernels read. Every array begins at a multiple of 16 bytes: Triton compiles a kernel anew for a
pointer that does not, and with offsets that vary by size a step would wait for it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from engine.gpu.bucket import Bucket

Words = TypeVar("Words", NDArray[np.int32], Tensor)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepArrays(Generic[Words]):
    """Hold a step's numbers, int32; R rows, T tokens, N tiles of a bucket.

    Of the rows, see `StepInputs`: `slots`, `context_lens` [R], `query_starts` [R + 1]. A decode may
    bring a block: `new_blocks` goes into column `block_columns` of its table, both [R]; a row
    without one names the last column, which nobody reads. What is drawn, [R], those that pad last:
    `draw_slots`, `draw_positions` (where the drawn token goes) and `logit_rows` (the token whose
    logits it is drawn from). `piece_starts` [R + 1], `piece_rows`: the bucket's pieces.
    `token_rows`, `positions`: [T]. `tiles`: [N, 2].
    """

    slots: Words
    context_lens: Words
    query_starts: Words
    block_columns: Words
    new_blocks: Words
    draw_slots: Words
    draw_positions: Words
    logit_rows: Words
    piece_starts: Words
    piece_rows: Words
    token_rows: Words
    positions: Words
    tiles: Words


# Words of 4 bytes.
_ALIGNMENT = 4
_OF_ROWS = (
    "slots",
    "context_lens",
    "block_columns",
    "new_blocks",
    "draw_slots",
    "draw_positions",
    "logit_rows",
)


def num_words(bucket: Bucket) -> int:
    """Count the words of a step of this size."""
    return sum(map(_aligned, _sizes(bucket).values()))


def arrays_of(words: Words, bucket: Bucket) -> StepArrays[Words]:
    """Read a buffer as a step of this size; what is returned are views."""
    parts: dict[str, Words] = {}
    begin = 0
    for name, size in _sizes(bucket).items():
        parts[name] = words[begin : begin + size]
        begin += _aligned(size)
    parts["tiles"] = parts["tiles"].reshape(-1, 2)
    return StepArrays(**parts)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _sizes(bucket: Bucket) -> dict[str, int]:
    sizes = dict.fromkeys((field.name for field in fields(StepArrays)), bucket.num_tokens)
    sizes |= dict.fromkeys(_OF_ROWS, bucket.num_rows)
    sizes |= dict.fromkeys(("query_starts", "piece_starts"), bucket.num_rows + 1)
    return sizes | {"piece_rows": bucket.num_pieces, "tiles": 2 * bucket.num_tiles}
