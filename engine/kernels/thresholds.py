"""Find how unlikely a token may be that top-k, top-p and min-p still keep, without a sort.

**What is found.** A row's `reach`: tokens whose tempered logit is at most that far below the
largest are kept, so tokens that tie are kept or dropped together, as `engine.sampler` has it. It
is infinite where nothing is filtered, and -1 where nothing is drawn: greedy rows and failed ones.

**How.** Distances below the largest are not negative, and such floats are in the order of their
bits. So a search over 31-bit integers is exact: each pass over the row weighs what three pivots
keep (counts for top-k, then probabilities for top-p) and quarters what is left. It ends when no
more than one token lies between. Sums are made in a fixed order, so equal rows get equal reaches.

A program takes a row; one without top-k and top-p ends at once, so that a captured graph can
always have this kernel in it.

Source: pivots instead of a sort, after FlashInfer's sampling kernels and vLLM's Qrita.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.operations import DrawColumns


def find_reach(
    logits: Tensor, columns: DrawColumns, slots: Tensor, partial: Tensor, *, block: int = 2048
) -> tuple[Tensor, Tensor]:
    """Find each row's reach and its largest logit; both float32, [R].

    Args: `logits`: [R, vocab_size]. `partial`: the largest logit of each part of a row, infinite
        where the row fails, [R, num_parts].
    """
    num_rows, vocab_size = logits.shape
    reach = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    largest = torch.empty_like(reach)
    _reach_kernel[(num_rows,)](
        logits,
        partial,
        columns.temperature,
        columns.top_k,
        columns.top_p,
        columns.min_p,
        slots,
        reach,
        largest,
        logits.stride(0),
        VOCAB_SIZE=vocab_size,
        NUM_PARTS=partial.shape[1],
        PARTS_BLOCK=triton.next_power_of_2(partial.shape[1]),
        BLOCK=block,
        num_warps=16,
    )
    return reach, largest


@triton.jit
def _reach_kernel(
    logits: tl.tensor,
    partial: tl.tensor,
    temperatures: tl.tensor,
    top_ks: tl.tensor,
    top_ps: tl.tensor,
    min_ps: tl.tensor,
    slots: tl.tensor,
    reaches: tl.tensor,
    largests: tl.tensor,
    stride: tl.tensor,
    VOCAB_SIZE: tl.constexpr,
    NUM_PARTS: tl.constexpr,
    PARTS_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row).to(tl.int64)
    parts = tl.arange(0, PARTS_BLOCK)
    is_part = parts < NUM_PARTS
    largest = tl.max(
        tl.load(partial + row * NUM_PARTS + parts, mask=is_part, other=-float("inf")), axis=0
    )
    tl.store(largests + row, largest)
    temperature = tl.load(temperatures + slot)
    if (temperature > 0) & (tl.abs(largest) < float("inf")):
        top_k, top_p = tl.load(top_ks + slot), tl.load(top_ps + slot)
        # The bits of infinity: beyond them no distance is.
        limit = tl.full((), 0x7F800000, tl.int32)
        values = logits + row * stride
        if (top_k > 0) & (top_k < VOCAB_SIZE):
            limit = _search(
                values, largest, temperature, limit, VOCAB_SIZE, top_k, False, VOCAB_SIZE, BLOCK
            )
        if top_p < 1:
            # Of what top-k left, ties included.
            _, _, _, total, _, _ = _weigh(
                values, largest, temperature, limit, limit, limit, True, VOCAB_SIZE, BLOCK
            )
            limit = _search(
                values, largest, temperature, limit, total, top_p * total, True, VOCAB_SIZE, BLOCK
            )
        reach = limit.to(tl.float32, bitcast=True)
        min_p = tl.load(min_ps + slot)
        if min_p > 0:
            reach = tl.minimum(reach, -tl.log(min_p))
        tl.store(reaches + row, reach)
    else:
        tl.store(reaches + row, -1.0)


@triton.jit
def _search(
    values: tl.tensor,
    largest: tl.tensor,
    temperature: tl.tensor,
    high: tl.tensor,
    high_weight: tl.tensor,
    target: tl.tensor,
    BY_MASS: tl.constexpr,
    VOCAB_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Find bits that part tokens as the smallest do whose weight reaches `target`.

    `high` reaches it, with `high_weight`; -1 does not. What lies between shrinks from both ends.
    """
    low = tl.full((), -1, tl.int32)
    num_low = tl.full((), 0, tl.int32)
    num_high = tl.full((), VOCAB_SIZE, tl.int32)
    high_weight = tl.zeros((), tl.float32 if BY_MASS else tl.int32) + high_weight
    # A weight that is just the target leaves no token to drop.
    while (high - low > 1) & (num_high - num_low > 1) & (high_weight > target):
        step = (high - low + 3) // 4
        first = low + step
        second = tl.minimum(first + step, high)
        third = tl.minimum(second + step, high)
        num_1, num_2, num_3, weight_1, weight_2, weight_3 = _weigh(
            values, largest, temperature, first, second, third, BY_MASS, VOCAB_SIZE, BLOCK
        )
        if weight_1 >= target:
            high, num_high, high_weight = first, num_1, weight_1
        elif weight_2 >= target:
            low, num_low = first, num_1
            high, num_high, high_weight = second, num_2, weight_2
        elif weight_3 >= target:
            low, num_low = second, num_2
            high, num_high, high_weight = third, num_3, weight_3
        else:
            low, num_low = third, num_3
    return high


@triton.jit
def _weigh(
    values: tl.tensor,
    largest: tl.tensor,
    temperature: tl.tensor,
    first: tl.tensor,
    second: tl.tensor,
    third: tl.tensor,
    BY_MASS: tl.constexpr,
    VOCAB_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tuple[tl.tensor, ...]:
    """Count the tokens that each of three bits keeps, and weigh them; without BY_MASS, count."""
    num_1 = tl.zeros([BLOCK], tl.int32)
    num_2 = tl.zeros([BLOCK], tl.int32)
    num_3 = tl.zeros([BLOCK], tl.int32)
    mass_1 = tl.zeros([BLOCK], tl.float32)
    mass_2 = tl.zeros([BLOCK], tl.float32)
    mass_3 = tl.zeros([BLOCK], tl.float32)
    lanes = tl.arange(0, BLOCK)
    for begin in range(0, VOCAB_SIZE, BLOCK):
        is_token = begin + lanes < VOCAB_SIZE
        logits = tl.load(values + begin + lanes, mask=is_token, other=-float("inf"))
        distance = tl.abs(tl.div_rn(logits.to(tl.float32) - largest, temperature))
        bits = distance.to(tl.int32, bitcast=True)
        is_1 = is_token & (bits <= first)
        is_2 = is_token & (bits <= second)
        is_3 = is_token & (bits <= third)
        num_1 += is_1.to(tl.int32)
        num_2 += is_2.to(tl.int32)
        num_3 += is_3.to(tl.int32)
        if BY_MASS:
            mass = tl.exp(-distance)
            mass_1 += tl.where(is_1, mass, 0.0)
            mass_2 += tl.where(is_2, mass, 0.0)
            mass_3 += tl.where(is_3, mass, 0.0)
    total_1, total_2, total_3 = tl.sum(num_1, axis=0), tl.sum(num_2, axis=0), tl.sum(num_3, axis=0)
    if BY_MASS:
        weight_1, weight_2 = tl.sum(mass_1, axis=0), tl.sum(mass_2, axis=0)
        return total_1, total_2, total_3, weight_1, weight_2, tl.sum(mass_3, axis=0)
    else:
        return total_1, total_2, total_3, total_1, total_2, total_3
