"""Linear layers in the layout that is fastest here.

*Plain* is `[in, out]`, transposed against the checkpoint: a product of a few rows with it is up
to twice as fast on a CPU as with `[out, in]`, and `addmm` folds a bias or the residual sum in.
*Packed* is what oneDNN makes of a weight for its own kernels: no reordering at each call, half
the time at eight rows. It is reached through private operators of torch, so whether they exist,
agree with a plain product, and win is found out by `engine.probe.layouts` at start.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import ClassVar

import torch
from torch import Tensor

from engine.models.loader import WeightSource

# The batch that oneDNN lays a weight out for; its kernels then take any number of rows.
_PACKED_FOR_ROWS = 8


class Layout(Enum):
    """Say in which layouts a weight is kept; with both, single rows use the plain one."""

    PLAIN = "plain"
    PACKED = "packed"
    BOTH = "both"


class Linear:
    """Hold a linear layer, or several that read the same input, side by side.

    `plain`: [in_features, out_features], or None where `packed` is kept instead. `few_rows`: the
    layout in which the compiled decoder reads a weight for up to `max_few_rows` rows, those of a
    decode step, or None; see `engine/native/csrc/linear.h`. `bias`: [out_features] or None.
    """

    __slots__ = (
        *("bias", "few_rows", "in_features", "max_few_rows", "out_features", "packed", "plain"),
    )
    # Whether one of the layouts is to be chosen; one of 8 bits has a layout of its own.
    has_layouts: ClassVar[bool] = True

    def __init__(self, plain: Tensor, bias: Tensor | None = None) -> None:
        self.in_features, self.out_features = plain.shape
        self.plain: Tensor | None = plain
        self.packed: Tensor | None = None
        self.few_rows: Tensor | None = None
        self.max_few_rows = 0
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """Apply it; [n, in_features] → [n, out_features]."""
        if self.packed is not None and (len(x) > 1 or self.plain is None):
            return apply_packed(x, self.packed, self.bias)
        assert self.plain is not None
        return x @ self.plain if self.bias is None else torch.addmm(self.bias, x, self.plain)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Return `residual` plus the layer's output of `x`; [n, out_features]."""
        if self.packed is not None and (len(x) > 1 or self.plain is None):
            summed: Tensor = torch.ops.mkldnn._linear_pointwise.binary(
                x, residual, self.packed, self.bias, "add"
            )
            return summed
        assert self.plain is not None
        out = torch.addmm(residual, x, self.plain)
        return out if self.bias is None else out.add_(self.bias)

    def into(self, out: Tensor, x: Tensor) -> Tensor:
        """Apply it and leave the result in `out`, [n, out_features]; from plain, without a bias."""
        assert self.plain is not None
        assert self.bias is None
        return torch.mm(x, self.plain, out=out)

    def lay_out_by_column(self) -> None:
        """Keep plain as `[out, in]` in memory, which a GPU's kernels for few rows are made for."""
        assert self.plain is not None
        self.plain = self.plain.t().contiguous().t()

    def lay_out(self, layout: Layout) -> None:
        """Keep the weight as `layout` says; from plain only."""
        assert self.plain is not None
        if layout is Layout.PLAIN:
            return
        self.packed = pack(self.plain)
        if layout is Layout.PACKED:
            self.plain = None


def load_linear(
    weights: WeightSource,
    parts: Sequence[tuple[str, int]],
    in_features: int,
    *,
    bias: bool = False,
) -> Linear:
    """Merge the linear layers `parts` (name without `.weight`, out_features) of the same input."""
    weight = torch.cat([weights.take(f"{name}.weight", out, in_features) for name, out in parts])
    return Linear(
        weight.t().contiguous(),
        torch.cat([weights.take(f"{name}.bias", out) for name, out in parts]) if bias else None,
    )


def pack(plain: Tensor) -> Tensor:
    """Lay a weight out for oneDNN; raises where torch has no such operator."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(
        plain.t().contiguous(), _PACKED_FOR_ROWS
    )
    return packed


def apply_packed(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply with a packed weight; [n, in_features] → [n, out_features]."""
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return out
