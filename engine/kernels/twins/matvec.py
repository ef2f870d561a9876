"""The product of a few rows with a weight, with what stands around it, in plain torch."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from engine.kernels.operations import MATVEC_ROWS
from engine.kernels.twins.norms import norm_rows


def matvec(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    norm: Tensor | None = None,
    eps: float = 0.0,
    rows: Tensor | None = None,
    residual: Tensor | None = None,
    gated: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """Norm, multiply, gate and add in float32, and round once; see `Operations.matvec`."""
    values = (x if rows is None else x.index_select(0, rows)).float()
    assert len(values) <= MATVEC_ROWS
    if norm is not None:
        values = norm_rows(values, norm, eps)
    product = values @ weight.float().t()
    if bias is not None:
        product += bias.float()
    if gated:
        gate, up = product.chunk(2, dim=-1)
        product = F.silu(gate) * up
    if residual is not None:
        product += residual.float()
    rounded = product.to(x.dtype)
    return rounded if out is None else out.copy_(rounded)
