"""Decode attention: one query token a row, the context in splits that many programs share.

A program has one row, one key head and one split. The query heads that share the key head are the
rows of its products, padded to the 16 that tensor cores take, so keys and values are read once for
all of them. Key heads are the fastest axis of the grid: what runs at the same time reads a token's
heads, which are neighbours in memory.

Splits are whole tiles, and as many as the launch says, however long a row is; a short row leaves
its last ones empty. With one split the program writes the output; with more each writes what it
gathered for `engine.kernels.attention_combine`. Rows without exactly one token are none of this.

Source: Flash-Decoding, Dao et al. 2023; rows of grouped heads as in SGLang's
`decode_attention.py`.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels import tuned
from engine.kernels.attention_combine import Partials
from engine.kernels.attention_tile import (
    HeadShape,
    accumulate,
    find_places,
    load_tile,
    tile_key,
)
from engine.kernels.operations import StepInputs


def attend_decode(
    out: Tensor,
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    inputs: StepInputs,
    shape: HeadShape,
    partials: Partials | None,
) -> None:
    """Fill what rows of one token have in `out`, [T, num_heads * head_dim], or in `partials`."""
    num_splits = 1 if partials is None else partials.num_splits
    gathered = (out, out, out) if partials is None else partials.tensors()
    grid = (k_cache.shape[1], len(inputs.slots), num_splits)
    _decode_attention[grid](
        out,
        *gathered,
        q,
        k_cache,
        v_cache,
        inputs.slots,
        inputs.query_starts,
        inputs.context_lens,
        inputs.block_tables,
        *q.stride()[:2],
        *k_cache.stride()[:2],
        inputs.block_tables.stride(0),
        num_splits,
        SPLIT=partials is not None,
        BLOCK_M=max(16, triton.next_power_of_2(shape.group)),
        **shape.constants(),
        **tuned.settings("decode_attention", decode_key(q, k_cache), q.device),
    )


def decode_key(q: Tensor, k_cache: Tensor) -> str:
    """Name what tuned settings of decode depend on, such as "d128-bfloat16"."""
    return tile_key(q, k_cache)


@triton.jit(do_not_specialize=["num_splits"])
def _decode_attention(
    out: tl.tensor,
    partial_accs: tl.tensor,
    partial_tops: tl.tensor,
    partial_totals: tl.tensor,
    q: tl.tensor,
    k_cache: tl.tensor,
    v_cache: tl.tensor,
    slots: tl.tensor,
    query_starts: tl.tensor,
    context_lens: tl.tensor,
    block_tables: tl.tensor,
    q_token_stride: tl.tensor,
    q_head_stride: tl.tensor,
    place_stride: tl.tensor,
    kv_head_stride: tl.tensor,
    table_stride: tl.tensor,
    num_splits: tl.tensor,
    SPLIT: tl.constexpr,
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
) -> None:
    kv_head = tl.program_id(0)
    row = tl.program_id(1)
    split = tl.program_id(2)
    token = tl.load(query_starts + row).to(tl.int64)
    if tl.load(query_starts + row + 1) - token != 1:
        return
    context_len = tl.load(context_lens + row)
    first_key = 0
    if WINDOW > 0:
        first_key = tl.maximum(context_len - WINDOW, 0)
    begin = first_key
    end = context_len
    if SPLIT:
        share = tl.cdiv(tl.cdiv(context_len - first_key, num_splits), BLOCK_N) * BLOCK_N
        begin = first_key + split * share
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
    for start in range(begin, end, BLOCK_N):
        positions = start + tl.arange(0, BLOCK_N)
        there = positions < end
        places = find_places(table, positions, there, BLOCK_SIZE) * place_stride
        mask = there[None, :] & (dims < HEAD_DIM)[:, None]
        keys = load_tile(head_keys + places[None, :] + dims[:, None], mask, True)
        scores = tl.dot(queries, keys.to(queries.dtype), input_precision=PRECISION)
        scores = tl.where(there[None, :], scores, float("-inf"))
        mask = there[:, None] & (dims < HEAD_DIM)[None, :]
        values = load_tile(head_values + places[:, None] + dims[None, :], mask, True)
        values = values.to(queries.dtype)
        # Each tile has a key that is seen, so no maximum is -inf.
        acc, top, total = accumulate(acc, top, total, scores, values, SCALE, False, PRECISION)

    if SPLIT:
        num_heads = tl.num_programs(0) * GROUP
        places_out = (row.to(tl.int64) * num_heads + heads) * num_splits + split
        tl.store(partial_tops + places_out, top, mask=members < GROUP)
        tl.store(partial_totals + places_out, total, mask=members < GROUP)
        # What an empty split gathered is never read.
        if begin < end:
            pointers = partial_accs + places_out[:, None] * HEAD_DIM + dims[None, :]
            tl.store(pointers, acc, mask=written)
    else:
        num_heads = tl.num_programs(0) * GROUP
        pointers = out + (token * num_heads + heads[:, None]) * HEAD_DIM + dims[None, :]
        tl.store(pointers, (acc / total[:, None]).to(out.dtype.element_ty), mask=written)
