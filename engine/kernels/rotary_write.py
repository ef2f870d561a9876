"""Norm and rotate the heads of queries and keys, and store keys and values, in one pass.

A program takes a few heads of one token. Where they go is computed here, from the row's block
table and the token's position, so nothing is prepared on the host. A token that pads is skipped:
what it holds, NaN included, reaches nothing. Keys are stored in the cache alone. What the position
and the weights say is read before anything is waited for.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels import dependent_launch
from engine.kernels.dependent_launch import await_predecessor
from engine.kernels.operations import StepInputs

# Heads in a program: 1024 elements of 128-wide heads, eight a thread.
_GROUP = 8


def rotate_and_write(
    qkv: Tensor,
    qk_norm: Tensor | None,
    eps: float,
    cos: Tensor,
    sin: Tensor,
    inputs: StepInputs,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    block_size: int,
    dependent: bool = False,
) -> Tensor:
    """Norm, rotate and store; see `Operations.rotate_and_write`."""
    num_tokens, num_qkv_heads, head_dim = qkv.shape
    num_kv_heads = k_cache.shape[1]
    num_heads = num_qkv_heads - 2 * num_kv_heads
    if num_tokens:
        _rotary_write_kernel[(num_tokens, triton.cdiv(num_qkv_heads, _GROUP))](
            qkv,
            qkv if qk_norm is None else qk_norm,
            cos,
            sin,
            inputs.token_rows,
            inputs.positions,
            inputs.slots,
            inputs.block_tables,
            k_cache,
            v_cache,
            eps,
            qkv.stride(0),
            qkv.stride(1),
            inputs.block_tables.stride(0),
            k_cache.stride(0),
            k_cache.stride(1),
            v_cache.stride(0),
            v_cache.stride(1),
            HAS_NORM=qk_norm is not None,
            NUM_HEADS=num_heads,
            NUM_KV_HEADS=num_kv_heads,
            HEAD_DIM=head_dim,
            HALF_BLOCK=triton.next_power_of_2(head_dim // 2),
            BLOCK_SIZE=block_size,
            GROUP=_GROUP,
            **dependent_launch.options(dependent),
        )
    return qkv[:, :num_heads]


@triton.jit
def _rotary_write_kernel(
    qkv: tl.tensor,
    qk_norm: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    token_rows: tl.tensor,
    positions: tl.tensor,
    slots: tl.tensor,
    block_tables: tl.tensor,
    k_cache: tl.tensor,
    v_cache: tl.tensor,
    eps: tl.tensor,
    token_stride: tl.tensor,
    head_stride: tl.tensor,
    table_stride: tl.tensor,
    k_place_stride: tl.tensor,
    k_head_stride: tl.tensor,
    v_place_stride: tl.tensor,
    v_head_stride: tl.tensor,
    HAS_NORM: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    row = tl.load(token_rows + token)
    position = tl.load(positions + token)
    slot = tl.load(slots + row, mask=row >= 0, other=0).to(tl.int64)
    HALF: tl.constexpr = HEAD_DIM // 2
    heads = tl.program_id(1) * GROUP + tl.arange(0, GROUP)[:, None]
    columns = tl.arange(0, HALF_BLOCK)[None, :]
    inside = (heads < NUM_HEADS + 2 * NUM_KV_HEADS) & (columns < HALF)
    is_value = heads >= NUM_HEADS + NUM_KV_HEADS
    # The table of sines carries the sign of each half.
    angles = position.to(tl.int64) * HEAD_DIM + columns
    has_angle = columns < HALF
    cos_first = tl.load(cos + angles, mask=has_angle, other=0.0).to(tl.float32)
    cos_second = tl.load(cos + angles + HALF, mask=has_angle, other=0.0).to(tl.float32)
    sin_first = tl.load(sin + angles, mask=has_angle, other=0.0).to(tl.float32)
    sin_second = tl.load(sin + angles + HALF, mask=has_angle, other=0.0).to(tl.float32)
    if HAS_NORM:
        weights = qk_norm + heads * HEAD_DIM + columns
        weights_first = tl.load(weights, mask=inside & ~is_value, other=0.0).to(tl.float32)
        weights_second = tl.load(weights + HALF, mask=inside & ~is_value, other=0.0).to(tl.float32)

    await_predecessor(DEPENDENT)
    if row < 0:
        return
    block = tl.load(block_tables + slot * table_stride + position // BLOCK_SIZE).to(tl.int64)
    sources = qkv + token * token_stride + heads * head_stride + columns
    first = tl.load(sources, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(sources + HALF, mask=inside, other=0.0).to(tl.float32)

    normed_first, normed_second = first, second
    if HAS_NORM:
        squares = tl.sum(first * first + second * second, axis=1)
        scale = tl.rsqrt(squares / HEAD_DIM + eps)[:, None]
        normed_first *= scale * weights_first
        normed_second *= scale * weights_second
    rotated_first = normed_first * cos_first + normed_second * sin_first
    rotated_second = normed_second * cos_second + normed_first * sin_second

    is_query = inside & (heads < NUM_HEADS)
    tl.store(sources, rotated_first.to(qkv.dtype.element_ty), mask=is_query)
    tl.store(sources + HALF, rotated_second.to(qkv.dtype.element_ty), mask=is_query)

    place = block * BLOCK_SIZE + position % BLOCK_SIZE
    is_key = inside & (heads >= NUM_HEADS) & (heads < NUM_HEADS + NUM_KV_HEADS)
    keys = k_cache + place * k_place_stride + (heads - NUM_HEADS) * k_head_stride + columns
    _store(keys, rotated_first, is_key)
    _store(keys + HALF, rotated_second, is_key)
    value_heads = heads - NUM_HEADS - NUM_KV_HEADS
    values = v_cache + place * v_place_stride + value_heads * v_head_stride + columns
    _store(values, first, inside & is_value)
    _store(values + HALF, second, inside & is_value)


@triton.jit
def _store(places: tl.tensor, values: tl.tensor, mask: tl.tensor) -> None:
    """Store float32 values as the cache has them; 8-bit floats end at 448, and NaN is beyond."""
    if places.dtype.element_ty == tl.float8e4nv:
        # By itself a GPU's maximum passes over NaN, and a row's fault would be a finite key.
        values = tl.maximum(values, -448.0, propagate_nan=tl.PropagateNan.ALL)
        values = tl.minimum(values, 448.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(places, values.to(places.dtype.element_ty), mask=mask)
