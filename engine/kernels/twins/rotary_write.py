"""Norm and rotate the heads of queries and keys, and store keys and values, in plain torch.

Nothing is read back to the host, so a CUDA graph may capture it. A token that pads has no place
of its own and may not touch another's: it repeats the write of a token that is there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.kernels.operations import StepInputs
from engine.kernels.twins.norms import norm_rows

# The largest finite number of float8_e4m3fn; what is larger would turn into NaN.
FLOAT8_LIMIT = 448.0


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
) -> Tensor:
    """Norm, rotate and store; see `Operations.rotate_and_write`."""
    num_kv_heads = k_cache.shape[1]
    num_heads = qkv.shape[1] - 2 * num_kv_heads
    heads = qkv[:, : num_heads + num_kv_heads].float()
    if qk_norm is not None:
        heads = norm_rows(heads, qk_norm, eps)
    heads = _rotate(heads, cos[inputs.positions].float(), sin[inputs.positions].float())
    qkv[:, : num_heads + num_kv_heads] = heads.to(qkv.dtype)
    sources, places = _places(inputs, block_size)
    _write(k_cache, heads[:, num_heads:], sources, places)
    _write(v_cache, qkv[:, num_heads + num_kv_heads :].float(), sources, places)
    return qkv[:, :num_heads]


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    swapped = heads.roll(heads.shape[-1] // 2, dims=-1)
    return heads * cos[:, None] + swapped * sin[:, None]


def _places(inputs: StepInputs, block_size: int) -> tuple[Tensor, Tensor]:
    """Say which token each one stands for, -1 where none is there, and where it goes; [T]."""
    is_there = inputs.token_rows >= 0
    tokens = torch.arange(len(is_there), device=is_there.device)
    sources = torch.where(is_there, tokens, is_there.int().argmax())
    rows = inputs.token_rows[sources].long()
    slots = inputs.slots[rows.clamp(min=0)].long()
    positions = inputs.positions[sources].long()
    blocks = inputs.block_tables[slots, positions // block_size].long()
    places = blocks * block_size + positions % block_size
    return torch.where(rows >= 0, sources, -1), torch.where(rows >= 0, places, 0)


def _write(cache: Tensor, values: Tensor, sources: Tensor, places: Tensor) -> None:
    """Store the sources' values, float32, [T, num_kv_heads, head_dim], rounded as the cache is."""
    if cache.dtype == torch.float8_e4m3fn:
        values = values.clamp(-FLOAT8_LIMIT, FLOAT8_LIMIT)
    # As bytes: few of torch's operations know 8-bit floats.
    rounded = values.to(cache.dtype).view(torch.uint8)
    stored = cache.view(torch.uint8)
    # Where nothing is there at all, the first place is given what it has.
    is_there = (sources >= 0)[:, None, None]
    stored[places] = torch.where(is_there, rounded[sources.clamp(min=0)], stored[places])
