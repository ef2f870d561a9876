"""The sizes that steps are padded to, so that each is a graph that was captured before.

Steps that only decode come in many sizes, as padding costs them most; steps with slices in sizes of
128 tokens: matrix products take their rows by as many, so that less padding would gain nothing, and
more is computed for nobody. What is larger than the largest runs as it is, uncaptured: its kernels
take longer than their launches.

Source: vLLM's list of captured sizes (`vllm/config/compilation.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.kernels.decode_pieces import most_pieces
from engine.kernels.operations import PREFILL_QUERIES

_MIXED_TOKENS = (128, *range(256, 2049, 128))
_FEW_SLICES = 16


@dataclass(frozen=True, slots=True, order=True)
class Bucket:
    """Say how many rows and tokens fit; `num_tiles` is 0 where every row has one token.

    `num_pieces`: the most that decode attention parts contexts into, by `most_pieces` of the rows.
    """

    num_tokens: int
    num_rows: int
    num_tiles: int = 0
    num_pieces: int = 0

    def holds(self, other: Bucket) -> bool:
        """Tell whether a step of another size can run as this one, in the pieces there are."""
        return (
            self.num_tokens >= other.num_tokens
            and self.num_rows >= other.num_rows
            and (self.num_tiles > 0) == (other.num_tiles > 0)
            and self.num_tiles >= other.num_tiles
        )


def decode_buckets(max_num_seqs: int, wave: int) -> list[Bucket]:
    """List the sizes of steps that only decode, the smallest first.

    `wave`: how many pieces of contexts run at once; see `engine.kernels.decode_pieces`.
    """
    sizes = [1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)]
    largest = min(max_num_seqs, sizes[-1])
    sizes = [size for size in sizes if size < largest] + [largest]
    return [Bucket(size, size, 0, most_pieces(size, wave)) for size in sizes]


def mixed_buckets(max_num_seqs: int, max_num_tokens: int, wave: int) -> list[Bucket]:
    """List the sizes of steps with slices, the smallest first.

    Each number of tokens comes with all rows, and with few: programs of attention that find nothing
    to do take turns with those that do, and of 2,048 tokens most would, as a step seldom has more
    than a few slices.
    """
    buckets = set[Bucket]()
    for size in _MIXED_TOKENS:
        if size <= max_num_tokens:
            most = min(max_num_seqs, size)
            few = min(most, _FEW_SLICES)
            buckets |= {
                Bucket(size, rows, _most_tiles(size, slices), most_pieces(rows, wave))
                for rows, slices in ((few, few), (most, few), (most, most))
            }
    return sorted(buckets)


def _most_tiles(num_tokens: int, num_slices: int) -> int:
    """Bound the tiles of any slices: each may end in one that is not full."""
    return num_tokens // PREFILL_QUERIES + min(num_slices, num_tokens // 2)
