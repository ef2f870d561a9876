"""Find how unlikely a token may be that top-k, top-p and min-p still keep, without a sort.

**What is found.** A row's `reach`: tokens whose tempered logit is at most that far below the
largest are kept, so tokens that tie are kept or dropped together, as `engine.sampling.sampler` has
it. It is infinite where nothing is filtered, and -1 where nothing is drawn: greedy rows and failed
ones.

**How.** By the search of `engine.kernels.pivot_search`, for top-k and then for top-p: over the
whole row until no more tokens are left than a program can hold, and over those from then on. Sums
are made in a fixed order, so equal rows get equal reaches.

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
from engine.kernels.pivot_search import gather, search

# Tokens that a program holds, and how many it reads at once.
HELD = 4096
BLOCK = 2048


def find_reach(
    logits: Tensor,
    columns: DrawColumns,
    slots: Tensor,
    partial: Tensor,
    *,
    held: int = HELD,
    block: int = BLOCK,
) -> tuple[Tensor, Tensor]:
    """Find each row's reach and its largest logit; both float32, [R].

    Args: `logits`: [R, vocab_size]. `partial`: the largest logit of each part of a row, infinite
        where the row fails, [R, num_parts]. `held` and `block` are for tests.
    """
    num_rows, vocab_size = logits.shape
    reach = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    largest = torch.empty_like(reach)
    scratch = torch.empty((num_rows, held), dtype=torch.float32, device=logits.device)
    _reach_kernel[(num_rows,)](
        logits,
        partial,
        columns.temperature,
        columns.top_k,
        columns.top_p,
        columns.min_p,
        slots,
        scratch,
        reach,
        largest,
        logits.stride(0),
        VOCAB_SIZE=vocab_size,
        NUM_PARTS=partial.shape[1],
        PARTS_BLOCK=triton.next_power_of_2(partial.shape[1]),
        HELD=held,
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
    scratch: tl.tensor,
    reaches: tl.tensor,
    largests: tl.tensor,
    stride: tl.tensor,
    VOCAB_SIZE: tl.constexpr,
    NUM_PARTS: tl.constexpr,
    PARTS_BLOCK: tl.constexpr,
    HELD: tl.constexpr,
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
        # The bits of infinity: no distance is beyond.
        limit = tl.full((), 0x7F800000, tl.int32)
        if ((top_k > 0) & (top_k < VOCAB_SIZE)) | (top_p < 1):
            limit = _find_limit(
                logits + row * stride,
                largest,
                temperature,
                top_k,
                top_p,
                scratch + row * HELD,
                HELD,
                VOCAB_SIZE,
                BLOCK,
            )
        reach = limit.to(tl.float32, bitcast=True)
        min_p = tl.load(min_ps + slot)
        if min_p > 0:
            reach = tl.minimum(reach, -tl.log(min_p))
        tl.store(reaches + row, reach)
    else:
        tl.store(reaches + row, -1.0)


@triton.jit
def _find_limit(
    values: tl.tensor,
    largest: tl.tensor,
    temperature: tl.tensor,
    top_k: tl.tensor,
    top_p: tl.tensor,
    scratch: tl.tensor,
    HELD: tl.constexpr,
    VOCAB_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Find the bits of the largest distance that top-k and then top-p keep."""
    limit = tl.full((), 0x7F800000, tl.int32)
    num_kept = tl.full((), VOCAB_SIZE, tl.int32)
    # The mass that top-p keeps, once it is known.
    mass = tl.full((), -1.0, tl.float32)
    none = mass
    has_top_k = (top_k > 0) & (top_k < VOCAB_SIZE)
    if has_top_k:
        limit, num_kept, _ = search(
            values, largest, temperature, none, limit, num_kept, top_k, 0.0,
            False, False, HELD, VOCAB_SIZE, BLOCK,
        )  # fmt: skip
    if (top_p < 1) & (num_kept > HELD):
        limit, num_kept, mass = search(
            values, largest, temperature, none, limit, num_kept, mass, top_p,
            True, False, HELD, VOCAB_SIZE, BLOCK,
        )  # fmt: skip
    if num_kept <= HELD:
        held = gather(values, largest, temperature, limit, scratch, HELD, VOCAB_SIZE, BLOCK)
        if has_top_k:
            limit, num_kept, _ = search(
                values, largest, temperature, held, limit, num_kept, top_k, 0.0,
                False, True, 0, VOCAB_SIZE, BLOCK,
            )  # fmt: skip
        if top_p < 1:
            limit, num_kept, mass = search(
                values, largest, temperature, held, limit, num_kept, mass, top_p,
                True, True, 0, VOCAB_SIZE, BLOCK,
            )  # fmt: skip
    return limit
