"""Decode attention: one query token a row, the context in pieces that many programs share.

A program has one piece of a row's keys and one key head. The query heads that share the key head
are the rows of its products, padded to the 16 that tensor cores take, so keys and values are read
once for all of them. Key heads are the fastest axis of the grid: what runs at the same time reads a
token's heads, which are neighbours in memory.

A row's pieces are whole tiles, equal but for the last; how many there are says the step
(`engine.kernels.decode_pieces`). With a window they share what it shows. What a program gathered it
writes for `engine.kernels.attention_combine`, also where a row is in one piece: a second way out
costs the registers of a fourth program on a multiprocessor, and the numbers are few beside keys.

Source: Flash-Decoding, Dao et al. 2023; rows of grouped heads as in SGLang's
`decode_attention.py`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels import dependent_launch, tuned
from engine.kernels.attention_combine import Partials
from engine.kernels.attention_tile import (
    HeadShape,
    accumulate,
    find_blocks,
    find_places,
    load_tile,
    tile_key,
)
from engine.kernels.decode_pieces import wave_of
from engine.kernels.dependent_launch import await_predecessor
from engine.kernels.operations import StepInputs


def attend_decode(
    partials: Partials,
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    inputs: StepInputs,
    shape: HeadShape,
    *,
    dependent: bool = False,
) -> None:
    """Fill `partials` with what the pieces of rows of one token have."""
    _decode_attention[k_cache.shape[1], len(inputs.piece_rows)](
        *partials.tensors(),
        q,
        k_cache,
        v_cache,
        inputs.piece_rows,
        inputs.piece_starts,
        inputs.slots,
        inputs.query_starts,
        inputs.context_lens,
        inputs.block_tables,
        *q.stride()[:2],
        *k_cache.stride()[:2],
        inputs.block_tables.stride(0),
        BLOCK_M=max(16, triton.next_power_of_2(shape.group)),
        **shape.constants(),
        **tuned.settings("decode_attention", decode_key(k_cache, q.dtype), q.device),
        **dependent_launch.options(dependent),
    )


def decode_key(k_cache: Tensor, dtype: torch.dtype) -> str:
    """Name what tuned settings depend on, such as "d128-bfloat16"; `dtype`: of queries."""
    return tile_key(k_cache, dtype)


def wave(k_cache: Tensor, dtype: torch.dtype) -> int:
    """Count the pieces that run at once; see `engine.kernels.decode_pieces`."""
    device = k_cache.device
    each = tuned.settings("decode_pieces", decode_key(k_cache, dtype), device)["PROGRAMS"]
    count = torch.cuda.get_device_properties(device).multi_processor_count
    return wave_of(count, each, k_cache.shape[1])


@triton.jit
def _decode_attention(
    partial_accs: tl.tensor,
    partial_tops: tl.tensor,
    partial_totals: tl.tensor,
    q: tl.tensor,
    k_cache: tl.tensor,
    v_cache: tl.tensor,
    piece_rows: tl.tensor,
    piece_starts: tl.tensor,
    slots: tl.tensor,
    query_starts: tl.tensor,
    context_lens: tl.tensor,
    block_tables: tl.tensor,
    q_token_stride: tl.tensor,
    q_head_stride: tl.tensor,
    place_stride: tl.tensor,
    kv_head_stride: tl.tensor,
    table_stride: tl.tensor,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    SCALE: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    kv_head = tl.program_id(0)
    piece = tl.program_id(1)
    row = tl.load(piece_rows + piece)
    await_predecessor(DEPENDENT)
    if row < 0:
        return
    first_piece = tl.load(piece_starts + row)
    num_pieces = tl.load(piece_starts + row + 1) - first_piece
    token = tl.load(query_starts + row).to(tl.int64)
    context_len = tl.load(context_lens + row)
    first_key = 0
    if WINDOW > 0:
        first_key = tl.maximum(context_len - WINDOW, 0)
    first_tile = first_key // BLOCK_N
    share = tl.cdiv(tl.cdiv(context_len, BLOCK_N) - first_tile, num_pieces) * BLOCK_N
    begin = first_tile * BLOCK_N + (piece - first_piece) * share
    end = tl.minimum(begin + share, context_len)

    members = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, BLOCK_D)
    heads = kv_head * GROUP + members
    # [BLOCK_M, BLOCK_D]
    written = (members < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    q_pointers = q + token * q_token_stride + heads[:, None] * q_head_stride + dims[None, :]
    queries = tl.load(q_pointers, mask=written, other=0.0)
    if UPCAST:
        queries = queries.to(tl.float32)

    table = block_tables + tl.load(slots + row).to(tl.int64) * table_stride
    head_keys = k_cache + kv_head * kv_head_stride
    head_values = v_cache + kv_head * kv_head_stride
    acc = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    top = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    total = tl.zeros([BLOCK_M], dtype=tl.float32)
    blocks = find_blocks(table, begin, end, BLOCK_N, BLOCK_SIZE)
    for start in range(begin, end, BLOCK_N):
        places = find_places(blocks, start, place_stride, BLOCK_N, BLOCK_SIZE)
        blocks = find_blocks(table, start + BLOCK_N, end, BLOCK_N, BLOCK_SIZE)
        positions = start + tl.arange(0, BLOCK_N)
        there = positions < end
        if WINDOW > 0:
            there = there & (positions >= first_key)
        mask = there[None, :] & (dims < HEAD_DIM)[:, None]
        keys = load_tile(head_keys + places[None, :] + dims[:, None], mask, True)
        scores = tl.dot(queries, keys.to(queries.dtype), input_precision=PRECISION)
        scores = tl.where(there[None, :], scores, float("-inf"))
        mask = there[:, None] & (dims < HEAD_DIM)[None, :]
        values = load_tile(head_values + places[:, None] + dims[None, :], mask, True)
        values = values.to(queries.dtype)
        # Each tile has a key that is seen, so no maximum is -inf.
        acc, top, total = accumulate(acc, top, total, scores, values, SCALE, False, PRECISION)

    places_out = piece.to(tl.int64) * tl.num_programs(0) * GROUP + heads
    tl.store(partial_tops + places_out, top, mask=members < GROUP)
    tl.store(partial_totals + places_out, total, mask=members < GROUP)
    # What an empty piece gathered is never read.
    if begin < end:
        pointers = partial_accs + places_out[:, None] * HEAD_DIM + dims[None, :]
        tl.store(pointers, acc, mask=written)
