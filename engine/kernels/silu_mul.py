"""Gate one half of a row by SiLU of the other."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels import dependent_launch
from engine.kernels.dependent_launch import await_predecessor

_BLOCK = 1024


def silu_mul(gate_up: Tensor, *, dependent: bool = False) -> Tensor:
    """Gate the second half by SiLU of the first; [T, 2 * size] → [T, size]."""
    num_tokens, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((num_tokens, size), dtype=gate_up.dtype, device=gate_up.device)
    if num_tokens:
        grid = (num_tokens, triton.cdiv(size, _BLOCK))
        _silu_mul_kernel[grid](
            gate_up,
            out,
            gate_up.stride(0),
            SIZE=size,
            BLOCK=_BLOCK,
            **dependent_launch.options(dependent),
        )
    return out


@triton.jit
def _silu_mul_kernel(
    gate_up: tl.tensor,
    out: tl.tensor,
    stride: tl.tensor,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    await_predecessor(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < SIZE
    gates = gate_up + row * stride + columns
    gate = tl.load(gates, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gates + SIZE, mask=inside, other=0.0).to(tl.float32)
    gated = gate / (1 + tl.exp(-gate)) * up
    tl.store(out + row * SIZE + columns, gated.to(out.dtype.element_ty), mask=inside)
