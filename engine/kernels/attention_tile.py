"""What the attention kernels share: a tile of the paged cache, and one step of an online softmax.

A tile is some keys of one sequence and one key head, from a multiple of its size on. A block that
is as large has all of it, and one number is looked up in the block table; of smaller blocks it has
several, and each key's place is looked up, which takes as many instructions as the arithmetic. A
key that is masked is not read, and counts as 0, values too: 0 times a NaN of a block that nobody
owns would be NaN.

A tile's blocks are looked up while the tile before is computed, and handed on from turn to turn of
the loop. Looked up where they are needed, they would be one more load that the others wait for:
Triton's pipeline then spends two of its stages on the table, and with three none is left to read a
tile ahead (`tests/engine/kernels/test_compile.py` counts what is in flight).

Scores are kept in units of log2, and `top` is their largest so far: the weights are 2 ** (score -
top), `total` is their sum, `acc` the sum of values by weight, all float32.

Source: FlashAttention-2, Dao 2023; Triton's fused attention tutorial.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Name what attention kernels are compiled for, beside tile sizes.

    `window` 0 is none. `upcast`: compute in float32, as the interpreter's bfloat16 is wrong.
    """

    head_dim: int
    group: int
    block_size: int
    window: int
    precise: bool
    upcast: bool

    def constants(self) -> dict[str, object]:
        return {
            "HEAD_DIM": self.head_dim,
            # Tensor cores multiply 16 at least.
            "BLOCK_D": max(16, triton.next_power_of_2(self.head_dim)),
            "GROUP": self.group,
            "BLOCK_SIZE": self.block_size,
            "WINDOW": self.window,
            # The factor on scores: softmax in powers of two, where e costs another product.
            "SCALE": self.head_dim**-0.5 * math.log2(math.e),
            # Float32 products by tensor cores lose 13 bits unless they are made of three.
            "PRECISION": "tf32x3" if self.precise else "tf32",
            "UPCAST": self.upcast,
        }


def head_shape(q: Tensor, k_cache: Tensor, *, block_size: int, window: int | None) -> HeadShape:
    """Describe what is to be computed: arguments as `Operations.attend` has them."""
    return HeadShape(
        head_dim=q.shape[2],
        group=q.shape[1] // k_cache.shape[1],
        block_size=block_size,
        window=window or 0,
        precise=q.dtype == torch.float32,
        upcast=bool(triton.knobs.runtime.interpret),
    )


def tile_key(k_cache: Tensor, dtype: torch.dtype) -> str:
    """Name the size of heads and the types of queries and cache, as keys of tuned settings do.

    Such as "d128-bfloat16", and "d128-bfloat16-float8_e4m3fn" where they differ.
    """
    types = dict.fromkeys(str(each).removeprefix("torch.") for each in (dtype, k_cache.dtype))
    return "-".join((f"d{k_cache.shape[2]}", *types))


@triton.jit
def find_blocks(
    table: tl.tensor,
    start: tl.tensor,
    end: tl.tensor,
    BLOCK_N: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
) -> tl.tensor:
    """Look up which blocks a tile's keys lie in; int32, one where a block has all of it, or
    [BLOCK_N].

    Args: `start`: the tile's first key, a multiple of BLOCK_N. `end`: from there on nothing is
        read, and a tile beyond it is looked up as block 0.
    """
    if BLOCK_SIZE % BLOCK_N == 0:
        blocks = tl.load(table + start // BLOCK_SIZE, mask=start < end, other=0)
    else:
        keys = start + tl.arange(0, BLOCK_N)
        blocks = tl.load(table + keys // BLOCK_SIZE, mask=keys < end, other=0)
    return blocks


@triton.jit
def find_places(
    blocks: tl.tensor,
    start: tl.tensor,
    place_stride: tl.tensor,
    BLOCK_N: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
) -> tl.tensor:
    """Say how far into the cache a tile's keys lie; elements, int64, [BLOCK_N]."""
    keys = tl.arange(0, BLOCK_N)
    first = blocks.to(tl.int64) * BLOCK_SIZE
    if BLOCK_SIZE % BLOCK_N == 0:
        places = (first + start % BLOCK_SIZE) * place_stride + keys * place_stride
    else:
        places = (first + (start + keys) % BLOCK_SIZE) * place_stride
    return places


@triton.jit
def load_tile(
    pointers: tl.tensor,
    mask: tl.tensor,
    MASKED: tl.constexpr,
) -> tl.tensor:
    """Load keys or values; what is masked is 0."""
    if MASKED:
        tile = tl.load(pointers, mask=mask, other=0.0)
    else:
        tile = tl.load(pointers)
    return tile


@triton.jit
def accumulate(
    acc: tl.tensor,
    top: tl.tensor,
    total: tl.tensor,
    scores: tl.tensor,
    values: tl.tensor,
    SCALE: tl.constexpr,
    GUARDED: tl.constexpr,
    PRECISION: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Add a tile to what queries have gathered: float32 [BLOCK_M, BLOCK_D], and twice [BLOCK_M].

    Args: `scores`: not scaled, -inf where a query does not see a key, [BLOCK_M, BLOCK_N]. `values`:
        [BLOCK_N, BLOCK_D]. `GUARDED`: a query may have seen nothing until now.
    Returns: the new `acc`, `top` and `total`.
    """
    new_top = tl.maximum(top, tl.max(scores, 1) * SCALE)
    shift = new_top
    if GUARDED:
        # -inf less -inf is NaN.
        shift = tl.where(new_top == float("-inf"), 0.0, new_top)
    weights = tl.exp2(scores * SCALE - shift[:, None])
    fade = tl.exp2(top - shift)
    total = total * fade + tl.sum(weights, 1)
    acc = acc * fade[:, None]
    acc = tl.dot(weights.to(values.dtype), values, acc, input_precision=PRECISION)
    return acc, new_top, total
