"""Attention over the paged cache by Triton: what `Operations.attend` is on a GPU.

Rows of one token go to `attention_decode` by their pieces, rows of more to `attention_prefill` by
their tiles. What is launched depends on the sizes of tensors alone, never on what they hold, so a
captured graph serves every batch that fits; what pads leaves at once. Where launches overlap, those
of tiles do not: next to what they take it is nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.kernels.attention_combine import Partials, combine
from engine.kernels.attention_decode import attend_decode
from engine.kernels.attention_prefill import attend_prefill
from engine.kernels.attention_tile import head_shape
from engine.kernels.operations import StepInputs


def attend(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    inputs: StepInputs,
    *,
    block_size: int,
    window: int | None,
    dependent: bool = False,
) -> Tensor:
    """Compute what `Operations.attend` says."""
    assert k_cache.stride() == v_cache.stride()
    assert q.stride(2) == k_cache.stride(2) == 1
    shape = head_shape(q, k_cache, block_size=block_size, window=window)
    out = torch.empty(q.shape[0], q.shape[1] * q.shape[2], dtype=q.dtype, device=q.device)
    partials = Partials.empty(q, len(inputs.piece_rows))
    attend_decode(partials, q, k_cache, v_cache, inputs, shape, dependent=dependent)
    combine(out, partials, inputs, dependent=dependent)
    if inputs.tiles is not None:
        attend_prefill(out, q, k_cache, v_cache, inputs, shape)
    return out
