"""Attention over a paged cache in plain torch, row by row: what the Triton kernels must equal.

Arithmetic is float32, whatever the queries and the cache are. It waits for the device to learn how
long the rows are, so it is for tests and small models.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.kernels.operations import StepInputs


def attend(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    inputs: StepInputs,
    *,
    block_size: int,
    window: int | None,
) -> Tensor:
    """Compute what `Operations.attend` says; tokens that pad get zeros.

    Only what some query sees is gathered, so that garbage elsewhere cannot matter.
    """
    num_tokens, num_heads, head_dim = q.shape
    out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    starts = inputs.query_starts.tolist()
    rows = zip(inputs.slots.tolist(), inputs.context_lens.tolist(), strict=True)
    for row, (slot, context_len) in enumerate(rows):
        begin, end = starts[row], starts[row + 1]
        if context_len == 0 or begin == end:
            continue
        first_query = context_len - (end - begin)
        first_key = 0 if window is None else max(first_query - window + 1, 0)
        keys = torch.arange(first_key, context_len, device=q.device)
        places = inputs.block_tables[slot][keys // block_size].long() * block_size
        places += keys % block_size
        queries = torch.arange(first_query, context_len, device=q.device)[:, None]
        seen = keys <= queries
        if window is not None:
            seen &= keys > queries - window
        out[begin:end] = _attend_dense(q[begin:end], k_cache[places], v_cache[places], seen)
    return out.view(num_tokens, num_heads * head_dim)


def _attend_dense(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """Let one row attend to its context; [num_queries, num_heads, head_dim].

    Args: `q`: as the result. `k`, `v`: [num_keys, num_kv_heads, head_dim]. `seen`: which keys a
        query sees, bool, [num_queries, num_keys].
    """
    group = q.shape[1] // k.shape[1]
    k = k.float().repeat_interleave(group, dim=1)
    v = v.float().repeat_interleave(group, dim=1)
    scores = torch.einsum("qhd,khd->hqk", q.float(), k) * q.shape[2] ** -0.5
    weights = torch.softmax(scores.masked_fill(~seen, float("-inf")), dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, v).to(q.dtype)
