"""Prefill attention: ragged chunks of prompts over a paged context that has them already.

**Tile.** A program has `PREFILL_QUERIES` queries of one row and one or two query heads of a group:
Hopper's wgmma multiplies 64 rows a warp group, so smaller tiles leave tensor cores idle, and 128
rows x 64 keys with 8 warps is what SGLang launches on it for heads up to 128. Two heads a program
read keys and values once for both; a group of odd size has one, with 4 warps, rather than padding.

**Ranges.** Keys that no query of the tile sees are not read. Those that all of them see are in
between, and take no mask; before them is the window's edge, after them the diagonal and the end.

**Order.** Programs start from the last tile: of a row it has the most keys, and what starts last
should be short. Tiles of heads that share keys are neighbours in the grid, and so in time.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels import tuned
from engine.kernels.attention_tile import (
    HeadShape,
    accumulate,
    find_blocks,
    find_places,
    load_tile,
    tile_key,
)
from engine.kernels.operations import PREFILL_QUERIES, StepInputs


def attend_prefill(
    out: Tensor,
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    inputs: StepInputs,
    shape: HeadShape,
) -> None:
    """Fill what the rows of tiles have in `out`, [T, num_heads * head_dim]."""
    assert inputs.tiles is not None
    heads = _heads_per_program(shape.group)
    grid = (q.shape[1] // heads, len(inputs.tiles))
    _prefill_attention[grid](
        out,
        q,
        k_cache,
        v_cache,
        inputs.tiles,
        inputs.slots,
        inputs.query_starts,
        inputs.context_lens,
        inputs.block_tables,
        *q.stride()[:2],
        *k_cache.stride()[:2],
        inputs.block_tables.stride(0),
        QUERIES=PREFILL_QUERIES,
        HEADS=heads,
        **shape.constants(),
        **tuned.settings("prefill_attention", prefill_key(q, k_cache), q.device),
    )


def prefill_key(q: Tensor, k_cache: Tensor) -> str:
    """Name what tuned settings of prefill depend on, such as "d128-bfloat16-h2"."""
    heads = _heads_per_program(q.shape[1] // k_cache.shape[1])
    return f"{tile_key(k_cache, q.dtype)}-h{heads}"


def _heads_per_program(group: int) -> int:
    return 2 if group % 2 == 0 else 1


@triton.jit
def _prefill_attention(
    out: tl.tensor,
    q: tl.tensor,
    k_cache: tl.tensor,
    v_cache: tl.tensor,
    tiles: tl.tensor,
    slots: tl.tensor,
    query_starts: tl.tensor,
    context_lens: tl.tensor,
    block_tables: tl.tensor,
    q_token_stride: tl.tensor,
    q_head_stride: tl.tensor,
    place_stride: tl.tensor,
    kv_head_stride: tl.tensor,
    table_stride: tl.tensor,
    QUERIES: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    SCALE: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
) -> None:
    tile = tl.num_programs(1) - 1 - tl.program_id(1)
    row = tl.load(tiles + 2 * tile)
    if row < 0:
        return
    first_query = tl.load(tiles + 2 * tile + 1)
    row_start = tl.load(query_starts + row)
    num_queries = tl.load(query_starts + row + 1) - row_start
    context_len = tl.load(context_lens + row)
    # Positions in the sequence, of the tile's first and last queries.
    first = context_len - num_queries + first_query
    last = tl.minimum(first + QUERIES, context_len) - 1

    # Row m of the tile is query m % QUERIES of head m // QUERIES, [QUERIES * HEADS].
    members = tl.arange(0, QUERIES * HEADS)
    queried = first + members % QUERIES
    first_head = tl.program_id(0) * HEADS
    heads = first_head + members // QUERIES
    tokens = (row_start + first_query + members % QUERIES).to(tl.int64)
    dims = tl.arange(0, BLOCK_D)
    written = (queried <= last)[:, None] & (dims < HEAD_DIM)[None, :]
    q_rows = tokens * q_token_stride + heads * q_head_stride
    queries = tl.load(q + q_rows[:, None] + dims[None, :], mask=written, other=0.0)
    if UPCAST:
        queries = queries.to(tl.float32)
    # What pads the tile sees what the last query does, so that it divides by no 0.
    queried = tl.minimum(queried, last)

    first_key = 0
    begin = 0
    if WINDOW > 0:
        first_key = tl.maximum(first - WINDOW + 1, 0)
        begin = first_key // BLOCK_N * BLOCK_N
    # [begin, clear): the window's edge. [clear, dense): seen by all. [dense, last]: the diagonal.
    clear = begin
    if WINDOW > 0:
        edge = tl.maximum(last - WINDOW + 1, 0) - begin
        clear = begin + tl.cdiv(edge, BLOCK_N) * BLOCK_N
    dense = clear + tl.maximum(first + 1 - clear, 0) // BLOCK_N * BLOCK_N

    kv_head = first_head // GROUP
    table = block_tables + tl.load(slots + row).to(tl.int64) * table_stride
    head_keys = k_cache + kv_head * kv_head_stride
    head_values = v_cache + kv_head * kv_head_stride
    acc = tl.zeros([QUERIES * HEADS, BLOCK_D], dtype=tl.float32)
    top = tl.full([QUERIES * HEADS], float("-inf"), dtype=tl.float32)
    total = tl.zeros([QUERIES * HEADS], dtype=tl.float32)
    if WINDOW > 0:
        acc, top, total = _attend_range(
            acc, top, total, queries, queried, head_keys, head_values, table, begin, clear,
            first_key, last, place_stride, True, BLOCK_N, HEAD_DIM, BLOCK_D, BLOCK_SIZE, WINDOW,
            SCALE, PRECISION,
        )  # fmt: skip
    acc, top, total = _attend_range(
        acc, top, total, queries, queried, head_keys, head_values, table, clear, dense,
        first_key, last, place_stride, False, BLOCK_N, HEAD_DIM, BLOCK_D, BLOCK_SIZE, WINDOW,
        SCALE, PRECISION,
    )  # fmt: skip
    acc, top, total = _attend_range(
        acc, top, total, queries, queried, head_keys, head_values, table, dense, last + 1,
        first_key, last, place_stride, True, BLOCK_N, HEAD_DIM, BLOCK_D, BLOCK_SIZE, WINDOW,
        SCALE, PRECISION,
    )  # fmt: skip

    num_heads = tl.num_programs(0) * HEADS
    out_rows = (tokens * num_heads + heads) * HEAD_DIM
    result = (acc / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + out_rows[:, None] + dims[None, :], result, mask=written)


@triton.jit
def _attend_range(
    acc: tl.tensor,
    top: tl.tensor,
    total: tl.tensor,
    queries: tl.tensor,
    queried: tl.tensor,
    head_keys: tl.tensor,
    head_values: tl.tensor,
    table: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    first_key: tl.tensor,
    last: tl.tensor,
    place_stride: tl.tensor,
    MASKED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    SCALE: tl.constexpr,
    PRECISION: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Add the keys of whole tiles from `begin` on, until `end`; as `accumulate` does."""
    padded: tl.constexpr = MASKED or HEAD_DIM < BLOCK_D
    # At a window's edge a query may not have come to its first key.
    guarded: tl.constexpr = MASKED and WINDOW > 0
    dims = tl.arange(0, BLOCK_D)
    blocks = find_blocks(table, begin, end, BLOCK_N, BLOCK_SIZE)
    for start in range(begin, end, BLOCK_N):
        places = find_places(blocks, start, place_stride, BLOCK_N, BLOCK_SIZE)
        blocks = find_blocks(table, start + BLOCK_N, end, BLOCK_N, BLOCK_SIZE)
        positions = start + tl.arange(0, BLOCK_N)
        there = positions <= last
        if guarded:
            there = there & (positions >= first_key)
        mask = there[None, :] & (dims < HEAD_DIM)[:, None]
        keys = load_tile(head_keys + places[None, :] + dims[:, None], mask, padded)
        scores = tl.dot(queries, keys.to(queries.dtype), input_precision=PRECISION)
        if MASKED:
            seen = positions[None, :] <= queried[:, None]
            if WINDOW > 0:
                seen = seen & (positions[None, :] > queried[:, None] - WINDOW)
            scores = tl.where(seen, scores, float("-inf"))
        mask = there[:, None] & (dims < HEAD_DIM)[None, :]
        values = load_tile(head_values + places[:, None] + dims[None, :], mask, padded)
        values = values.to(queries.dtype)
        acc, top, total = accumulate(acc, top, total, scores, values, SCALE, guarded, PRECISION)
    return acc, top, total
