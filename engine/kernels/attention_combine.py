"""Combine what the splits of decode attention gathered into each token's output.

A program has one row and one query head. A split without keys has a total of 0, and what else it
left is not read. A total that is NaN is a fault of the row, and must stay one: only 0 is empty.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels import tuned
from engine.kernels.operations import StepInputs

# The most splits a row may have.
MAX_SPLITS = 32


@dataclass(frozen=True, slots=True)
class Partials:
    """Hold what each split gathered of its keys; float32, by row, head and split.

    `accs`: sums of values by weight, [R, num_heads, num_splits, head_dim]. `tops`: the largest
    scores, in powers of two, `totals`: the sums of weights, [R, num_heads, num_splits].
    """

    accs: Tensor
    tops: Tensor
    totals: Tensor

    @staticmethod
    def empty(q: Tensor, num_rows: int, num_splits: int) -> Partials:
        """Make room; nothing is cleared, as decode writes every split of the rows that it has."""
        sizes = (num_rows, q.shape[1], num_splits)
        return Partials(
            q.new_empty(*sizes, q.shape[2], dtype=torch.float32),
            q.new_empty(sizes, dtype=torch.float32),
            q.new_empty(sizes, dtype=torch.float32),
        )

    @property
    def num_splits(self) -> int:
        return self.tops.shape[2]

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.accs, self.tops, self.totals


def combine(out: Tensor, partials: Partials, inputs: StepInputs) -> None:
    """Fill what rows of one token have in `out`, [T, num_heads * head_dim]."""
    num_rows, num_heads, num_splits, head_dim = partials.accs.shape
    _combine_attention[(num_heads, num_rows)](
        out,
        *partials.tensors(),
        inputs.query_starts,
        num_splits,
        HEAD_DIM=head_dim,
        BLOCK_D=triton.next_power_of_2(head_dim),
        BLOCK_SPLITS=MAX_SPLITS,
        **tuned.settings("combine_attention", f"d{head_dim}", out.device),
    )


@triton.jit(do_not_specialize=["num_splits"])
def _combine_attention(
    out: tl.tensor,
    partial_accs: tl.tensor,
    partial_tops: tl.tensor,
    partial_totals: tl.tensor,
    query_starts: tl.tensor,
    num_splits: tl.tensor,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
) -> None:
    head = tl.program_id(0)
    row = tl.program_id(1)
    num_heads = tl.num_programs(0)
    token = tl.load(query_starts + row).to(tl.int64)
    if tl.load(query_starts + row + 1) - token != 1:
        return
    splits = tl.arange(0, BLOCK_SPLITS)
    dims = tl.arange(0, BLOCK_D)
    places = (row.to(tl.int64) * num_heads + head) * num_splits + splits
    totals = tl.load(partial_totals + places, mask=splits < num_splits, other=0.0)
    there = totals != 0
    tops = tl.load(partial_tops + places, mask=there, other=float("-inf"))
    top = tl.max(tops, 0)
    # -inf less -inf is NaN.
    shares = tl.where(there, tl.exp2(tops - tl.where(top == float("-inf"), 0.0, top)), 0.0)
    total = tl.sum(shares * totals, 0)
    accs = tl.load(
        partial_accs + places[:, None] * HEAD_DIM + dims[None, :],
        mask=there[:, None] & (dims < HEAD_DIM)[None, :],
        other=0.0,
    )
    acc = tl.sum(shares[:, None] * accs, 0)
    pointers = out + (token * num_heads + head) * HEAD_DIM + dims
    tl.store(pointers, (acc / total).to(out.dtype.element_ty), mask=dims < HEAD_DIM)
