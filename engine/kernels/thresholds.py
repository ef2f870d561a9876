"""Find how unlikely a token may be that top-k, top-p and min-p still keep, without a sort.

**What is found.** A row's `reach`: tokens whose tempered logit is at most that far below the
largest are kept, so tokens that tie are kept or dropped together, as `engine.sampling.sampler` has
it. It is infinite where nothing is filtered, and -1 where nothing is drawn: greedy rows and failed
ones.

**How.** Top-k and top-p are a limit on how far a logit may be below the largest, which
`engine.kernels.find_limit` searches for; min-p is a reach as it stands.

Sums are made in a fixed order, so equal rows get equal reaches. A program takes a row; one without
top-k and top-p ends at once, so that a captured graph can always have this kernel in it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.find_limit import find_limit
from engine.kernels.gumbel_noise import row_keys
from engine.kernels.operations import DrawColumns
from engine.kernels.pivot_search import EVERYTHING
from engine.kernels.scan_logits import has_top_k

# Groups that a program reads, tokens that it holds, and how many it reads at once where it reads
# all. The maxima of a vocabulary of 151,936 are as many as the tokens of these groups.
LIKELY = 256
HELD = 2048
BLOCK = 4096


@dataclass(frozen=True, slots=True)
class RowFacts:
    """Hold what a draw has to know of each row.

    `reach`, `largest`: float32, [R]. `first`: the first group that has the largest logit, int32,
    [R]. `keys`: what noise is made from, as `engine.kernels.gumbel_noise` has it, int32, [R, 2].
    """

    reach: Tensor
    largest: Tensor
    first: Tensor
    keys: Tensor


def find_reach(
    logits: Tensor,
    columns: DrawColumns,
    slots: Tensor,
    positions: Tensor,
    maxima: Tensor,
    masses: Tensor,
    *,
    group: int,
    likely: int = LIKELY,
    held: int = HELD,
    block: int = BLOCK,
) -> RowFacts:
    """Find each row's reach, and what else follows from a row as a whole.

    Args: `logits`: [R, vocab_size]. `positions`: of the tokens to draw, [R]. `maxima`, `masses`: as
        `engine.kernels.scan_logits` finds them, of groups of so many tokens. The others are for
        tests.
    """
    num_rows, vocab_size = logits.shape
    reach = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    facts = RowFacts(
        reach,
        torch.empty_like(reach),
        torch.empty_like(reach, dtype=torch.int32),
        torch.empty((num_rows, 2), dtype=torch.int32, device=logits.device),
    )
    _reach_kernel[(num_rows,)](
        logits,
        maxima,
        masses,
        columns.temperature,
        columns.top_k,
        columns.top_p,
        columns.min_p,
        columns.seeds,
        slots,
        positions,
        torch.empty((num_rows, held), dtype=torch.float32, device=logits.device),
        torch.empty((num_rows, likely), dtype=torch.int32, device=logits.device),
        facts.reach,
        facts.largest,
        facts.first,
        facts.keys,
        logits.stride(0),
        vocab_size,
        VOCAB_SIZE=vocab_size,
        NUM_PARTS=maxima.shape[1],
        PARTS_BLOCK=triton.next_power_of_2(maxima.shape[1]),
        GROUPS=maxima.shape[2],
        GROUP=group,
        LIKELY=likely,
        HELD=held,
        BLOCK=block,
        num_warps=16,
    )
    return facts


# Were the number of tokens a constant as well, a search that a small vocabulary never needs would
# be left out, and Triton 3.6 fails to compile what remains.
@triton.jit(do_not_specialize=["num_tokens"])
def _reach_kernel(
    logits: tl.tensor,
    maxima: tl.tensor,
    masses: tl.tensor,
    temperatures: tl.tensor,
    top_ks: tl.tensor,
    top_ps: tl.tensor,
    min_ps: tl.tensor,
    seeds: tl.tensor,
    slots: tl.tensor,
    positions: tl.tensor,
    scratch: tl.tensor,
    likeliest: tl.tensor,
    reaches: tl.tensor,
    largests: tl.tensor,
    firsts: tl.tensor,
    keys: tl.tensor,
    stride: tl.tensor,
    num_tokens: tl.tensor,
    VOCAB_SIZE: tl.constexpr,
    NUM_PARTS: tl.constexpr,
    PARTS_BLOCK: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    LIKELY: tl.constexpr,
    HELD: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row).to(tl.int64)
    groups = tl.arange(0, PARTS_BLOCK * GROUPS)
    is_group = groups < NUM_PARTS * GROUPS
    tops = tl.load(maxima + row * (NUM_PARTS * GROUPS) + groups, mask=is_group, other=-float("inf"))
    largest = tl.max(tops, axis=0)
    tl.store(largests + row, largest)
    tl.store(firsts + row, tl.min(tl.where(tops == largest, groups, 0x7FFFFFFF), axis=0))
    temperature = tl.load(temperatures + slot)
    if (temperature > 0) & (tl.abs(largest) < float("inf")):
        low, high = row_keys(tl.load(seeds + slot), tl.load(positions + row))
        tl.store(keys + row * 2, low.to(tl.int32, bitcast=True))
        tl.store(keys + row * 2 + 1, high.to(tl.int32, bitcast=True))
        top_k, top_p = tl.load(top_ks + slot), tl.load(top_ps + slot)
        limit = tl.full((), EVERYTHING, tl.int32)
        if has_top_k(top_k, VOCAB_SIZE) | (top_p < 1):
            limit = find_limit(
                logits + row * stride,
                tl.where(is_group, largest - tops, float("nan")),
                largest,
                temperature,
                top_k,
                top_p,
                masses + row * NUM_PARTS,
                scratch + row * HELD,
                likeliest + row * LIKELY,
                num_tokens,
                NUM_PARTS,
                PARTS_BLOCK,
                GROUPS,
                GROUP,
                LIKELY,
                HELD,
                VOCAB_SIZE,
                BLOCK,
            )
        reach = tl.div_rn(limit.to(tl.float32, bitcast=True), temperature)
        min_p = tl.load(min_ps + slot)
        if min_p > 0:
            reach = tl.minimum(reach, -tl.log(min_p))
        tl.store(reaches + row, reach)
    else:
        tl.store(reaches + row, -1.0)
