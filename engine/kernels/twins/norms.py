"""The elementwise operations between a decoder's matrix products, in plain torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def add_rms_norm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    eps: float,
    rows: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Add `residual` to `x` and norm the rows; see `Operations.add_rms_norm`.

    What is normed is the sum as it is returned, rounded to x's dtype: so the next layer adds to
    the same numbers that this one has seen, as it does in a model without fused operations.
    """
    if rows is not None:
        x = x.index_select(0, rows)
        residual = None if residual is None else residual.index_select(0, rows)
    total = x if residual is None else (x.float() + residual.float()).to(x.dtype)
    return norm_rows(total.float(), weight, eps).to(x.dtype), total


def norm_rows(values: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale float32 rows to unit root mean square, then by `weight`; [..., size]."""
    scale = torch.rsqrt(values.square().mean(dim=-1, keepdim=True) + eps)
    return values * scale * weight.float()


def silu_mul(gate_up: Tensor) -> Tensor:
    """Gate the second half by SiLU of the first; [T, 2 * size] → [T, size]."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (F.silu(gate) * up).to(gate_up.dtype)
