"""Add to the residual stream and norm what it is then, a program a row.

A row is read once and stays in registers, padded to a power of two. The arithmetic is float32; the
norm sees the sum as it is stored, as it would if the two were apart. The weight is a parameter, and
so is read before anything is waited for.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels import dependent_launch
from engine.kernels.dependent_launch import await_predecessor


def add_rms_norm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    eps: float,
    rows: Tensor | None = None,
    *,
    dependent: bool = False,
) -> tuple[Tensor, Tensor]:
    """Add `residual` to `x` and norm the rows; see `Operations.add_rms_norm`."""
    num_rows, size = x.shape[0] if rows is None else len(rows), x.shape[1]
    normed = x.new_empty(num_rows, size)
    is_sum = residual is None and rows is None
    total = x if is_sum else torch.empty_like(normed)
    if num_rows:
        block = triton.next_power_of_2(size)
        _add_rms_norm_kernel[(num_rows,)](
            x,
            x if residual is None else residual,
            weight,
            x if rows is None else rows,
            normed,
            total,
            x.stride(0),
            0 if residual is None else residual.stride(0),
            eps,
            HAS_RESIDUAL=residual is not None,
            HAS_ROWS=rows is not None,
            HAS_TOTAL=not is_sum,
            SIZE=size,
            BLOCK=block,
            # Eight elements a thread: 16 bytes of bfloat16.
            num_warps=min(max(block // 256, 1), 16),
            **dependent_launch.options(dependent),
        )
    return normed, total


@triton.jit
def _add_rms_norm_kernel(
    x: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    rows: tl.tensor,
    normed: tl.tensor,
    total: tl.tensor,
    x_stride: tl.tensor,
    residual_stride: tl.tensor,
    eps: tl.tensor,
    HAS_RESIDUAL: tl.constexpr,
    HAS_ROWS: tl.constexpr,
    HAS_TOTAL: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    columns = tl.arange(0, BLOCK)
    inside = columns < SIZE
    weights = tl.load(weight + columns, mask=inside, other=0.0)
    await_predecessor(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    source = row
    if HAS_ROWS:
        source = tl.load(rows + row).to(tl.int64)
    values = tl.load(x + source * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        added = tl.load(residual + source * residual_stride + columns, mask=inside, other=0.0)
        values = (values + added.to(tl.float32)).to(total.dtype.element_ty).to(tl.float32)
    if HAS_TOTAL:
        tl.store(total + row * SIZE + columns, values.to(total.dtype.element_ty), mask=inside)
    scale = tl.rsqrt(tl.sum(values * values, axis=0) / SIZE + eps)
    scaled = values * scale * weights.to(tl.float32)
    tl.store(normed + row * SIZE + columns, scaled.to(normed.dtype.element_ty), mask=inside)
