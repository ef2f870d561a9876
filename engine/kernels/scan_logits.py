"""Read all logits once: what a draw must know of each row before it can tell who may win.

A row is split into parts, a program each, and a part into groups of neighbours. Of each group its
largest logit is kept, so that later passes find the likeliest tokens, and leave out the others,
without reading them. Rows with top-p and no top-k need the mass of all tokens as well.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.operations import DrawColumns

# Tokens of a part: as many as a program of 128 threads has room for at once. Tokens of a group: the
# fewer, the less is read twice, but the more groups there are to look through.
PART = 2048
GROUP = 32


def scan_logits(
    logits: Tensor, columns: DrawColumns, slots: Tensor, *, part: int, group: int
) -> tuple[Tensor, Tensor]:
    """Find each group's largest logit, and the mass of parts where it is needed.

    Args: `logits`: [R, vocab_size]. `part`, `group`: their tokens, powers of two.
    Returns: the largest logits, infinite for NaN, minus infinity where there is no token, float32,
        [R, num_parts, part / group]; and of each part the sum of exp((logit - its largest) /
        temperature), anything where that is not needed, float32, [R, num_parts].
    """
    num_rows, vocab_size = logits.shape
    shape = (num_rows, triton.cdiv(vocab_size, part), part // group)
    maxima = torch.empty(shape, dtype=torch.float32, device=logits.device)
    masses = torch.empty(shape[:2], dtype=torch.float32, device=logits.device)
    _scan_kernel[shape[:2]](
        logits,
        columns.temperature,
        columns.top_k,
        columns.top_p,
        slots,
        maxima,
        masses,
        logits.stride(0),
        VOCAB_SIZE=vocab_size,
        PART=part,
        GROUP=group,
    )
    return maxima, masses


@triton.jit
def _scan_kernel(
    logits: tl.tensor,
    temperatures: tl.tensor,
    top_ks: tl.tensor,
    top_ps: tl.tensor,
    slots: tl.tensor,
    maxima: tl.tensor,
    masses: tl.tensor,
    stride: tl.tensor,
    VOCAB_SIZE: tl.constexpr,
    PART: tl.constexpr,
    GROUP: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    groups = tl.arange(0, PART // GROUP)
    ids = part * PART + groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    values = tl.load(logits + row * stride + ids, mask=ids < VOCAB_SIZE, other=-float("inf"))
    values = values.to(tl.float32)
    values = tl.where(values == values, values, float("inf"))
    largest_of_groups = tl.max(values, axis=1)
    place = row * tl.num_programs(1) + part
    tl.store(maxima + place * (PART // GROUP) + groups, largest_of_groups)
    slot = tl.load(slots + row).to(tl.int64)
    temperature, top_k = tl.load(temperatures + slot), tl.load(top_ks + slot)
    if (temperature > 0) & (tl.load(top_ps + slot) < 1) & ~has_top_k(top_k, VOCAB_SIZE):
        largest = tl.max(largest_of_groups, axis=0)
        # Where all tokens are hidden, so is their mass; where the row fails, nobody asks for it.
        largest = tl.where(tl.abs(largest) < float("inf"), largest, 0.0)
        tl.store(masses + place, tl.sum(mass_of(largest - values, exp2_rate(temperature))))


@triton.jit
def has_top_k(top_k: tl.tensor, VOCAB_SIZE: tl.constexpr) -> tl.tensor:
    """Tell whether it leaves anything out."""
    return (top_k > 0) & (top_k < VOCAB_SIZE)


@triton.jit
def exp2_rate(temperature: tl.tensor) -> tl.tensor:
    """Compute by how many halvings a logit's unit changes a mass; finite, so that 0 stays 0."""
    return tl.minimum(tl.div_rn(1.4426950408889634, temperature), 3e38)


@triton.jit
def mass_of(gap: tl.tensor, rate: tl.tensor) -> tl.tensor:
    """Compute exp(-gap / temperature)."""
    return tl.exp2(-(gap * rate))
