"""Attention over the paged cache by Triton: what `Operations.attend` is on a GPU.

Rows of one token go to `attention_decode`, all rows being launched and the others leaving at once;
rows of more go to `attention_prefill` by their tiles. What is launched depends on the sizes of
tensors alone, never on what they hold, so a captured graph serves every batch that fits.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from engine.kernels.attention_combine import MAX_SPLITS, Partials, combine
from engine.kernels.attention_decode import attend_decode
from engine.kernels.attention_prefill import attend_prefill
from engine.kernels.attention_tile import head_shape
from engine.kernels.operations import StepInputs

# Keys that are worth a split of their own.
_KEYS_PER_SPLIT = 64


def attend(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    inputs: StepInputs,
    *,
    block_size: int,
    window: int | None,
    num_splits: int | None = None,
) -> Tensor:
    """Compute what `Operations.attend` says.

    Args: `num_splits`: in how many parts decode attention reads a context; None: by the device.
    """
    assert k_cache.stride() == v_cache.stride()
    assert q.stride(2) == k_cache.stride(2) == 1
    shape = head_shape(q, k_cache, block_size=block_size, window=window)
    out = torch.empty(q.shape[0], q.shape[1] * q.shape[2], dtype=q.dtype, device=q.device)
    num_rows = len(inputs.slots)
    if num_splits is None:
        num_keys = inputs.block_tables.shape[1] * block_size
        num_keys = min(num_keys, window or num_keys)
        num_splits = choose_num_splits(
            num_rows * k_cache.shape[1], num_keys, _num_processors(q.device)
        )
    partials = Partials.empty(q, num_rows, num_splits) if num_splits > 1 else None
    attend_decode(out, q, k_cache, v_cache, inputs, shape, partials)
    if partials is not None:
        combine(out, partials, inputs)
    if inputs.tiles is not None:
        attend_prefill(out, q, k_cache, v_cache, inputs, shape)
    return out


def choose_num_splits(num_programs: int, num_keys: int, num_processors: int) -> int:
    """Part contexts so that there are two to four programs a multiprocessor; a power of two.

    Args: `num_programs`: without splits. `num_keys`: the longest context that there may be.
    """
    wanted = min(4 * num_processors // num_programs, num_keys // _KEYS_PER_SPLIT, MAX_SPLITS)
    return 1 << (max(wanted, 1).bit_length() - 1)


@cache
def _num_processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count
