"""Combine what the pieces of decode attention gathered into each token's output.

A program has one row and one query head, and reads the row's pieces a few at a time; a row without
any is none of decode's. A piece without keys has a total of 0, and its sum was never written: it
counts as 0. A total that is NaN is a fault of the row, and must stay one: only 0 is empty. Of many
rows most are in one piece, which always has keys, and are only divided.

What a program does is wait for memory, so that many small ones, of a warp each, are faster than few
large ones: on an H200 one layer of 256 rows and 32 heads took 27 µs by four warps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels import dependent_launch, tuned
from engine.kernels.dependent_launch import await_predecessor
from engine.kernels.operations import StepInputs

# Pieces that are read at once: as many as a row has on average, within these.
_LEAST, _MOST = 8, 32


@dataclass(frozen=True, slots=True)
class Partials:
    """Hold what each piece gathered of its keys; float32, by piece and head.

    `accs`: sums of values by weight, [num_pieces, num_heads, head_dim]. `tops`: the largest scores,
    in powers of two, `totals`: the sums of weights, [num_pieces, num_heads].
    """

    accs: Tensor
    tops: Tensor
    totals: Tensor

    @staticmethod
    def empty(q: Tensor, num_pieces: int) -> Partials:
        """Make room; nothing is cleared, as decode writes what there is to combine."""
        sizes = (num_pieces, q.shape[1])
        return Partials(
            q.new_empty(*sizes, q.shape[2], dtype=torch.float32),
            q.new_empty(sizes, dtype=torch.float32),
            q.new_empty(sizes, dtype=torch.float32),
        )

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.accs, self.tops, self.totals


def combine(
    out: Tensor, partials: Partials, inputs: StepInputs, *, dependent: bool = False
) -> None:
    """Fill what rows in pieces have in `out`, [T, num_heads * head_dim]."""
    num_pieces, num_heads, head_dim = partials.accs.shape
    num_rows = len(inputs.slots)
    block = triton.next_power_of_2(max(num_pieces // num_rows, 1))
    _combine_attention[(num_heads, num_rows)](
        out,
        *partials.tensors(),
        inputs.query_starts,
        inputs.piece_starts,
        HEAD_DIM=head_dim,
        BLOCK_D=triton.next_power_of_2(head_dim),
        BLOCK=min(max(block, _LEAST), _MOST),
        **tuned.settings("combine_attention", f"d{head_dim}", out.device),
        **dependent_launch.options(dependent),
    )


@triton.jit
def _combine_attention(
    out: tl.tensor,
    partial_accs: tl.tensor,
    partial_tops: tl.tensor,
    partial_totals: tl.tensor,
    query_starts: tl.tensor,
    piece_starts: tl.tensor,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    head = tl.program_id(0)
    row = tl.program_id(1)
    num_heads = tl.num_programs(0)
    first = tl.load(piece_starts + row)
    end = tl.load(piece_starts + row + 1)
    await_predecessor(DEPENDENT)
    if end == first:
        return
    token = tl.load(query_starts + row).to(tl.int64)
    dims = tl.arange(0, BLOCK_D)
    pointers = out + (token * num_heads + head) * HEAD_DIM + dims
    if end - first == 1:
        place = first.to(tl.int64) * num_heads + head
        total = tl.load(partial_totals + place)
        acc = tl.load(partial_accs + place * HEAD_DIM + dims, mask=dims < HEAD_DIM, other=0.0)
        tl.store(pointers, (acc / total).to(out.dtype.element_ty), mask=dims < HEAD_DIM)
        return
    acc = tl.zeros([BLOCK_D], dtype=tl.float32)
    top = tl.full((), float("-inf"), tl.float32)
    total = tl.full((), 0.0, tl.float32)
    for begin in range(first, end, BLOCK):
        pieces = begin + tl.arange(0, BLOCK)
        places = pieces.to(tl.int64) * num_heads + head
        # No load waits for another.
        inside = pieces < end
        totals = tl.load(partial_totals + places, mask=inside, other=0.0)
        tops = tl.load(partial_tops + places, mask=inside, other=float("-inf"))
        accs = tl.load(
            partial_accs + places[:, None] * HEAD_DIM + dims[None, :],
            mask=inside[:, None] & (dims < HEAD_DIM)[None, :],
            other=0.0,
        )
        there = totals != 0
        new_top = tl.maximum(top, tl.max(tops, 0))
        # -inf less -inf is NaN.
        shift = tl.where(new_top == float("-inf"), 0.0, new_top)
        shares = tl.where(there, tl.exp2(tops - shift), 0.0)
        fade = tl.exp2(top - shift)
        accs = tl.where(there[:, None], accs, 0.0)
        acc = acc * fade + tl.sum(shares[:, None] * accs, 0)
        total = total * fade + tl.sum(shares * totals, 0)
        top = new_top
    tl.store(pointers, (acc / total).to(out.dtype.element_ty), mask=dims < HEAD_DIM)
