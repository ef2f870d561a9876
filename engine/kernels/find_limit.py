"""Find the largest gap that top-k and then top-p keep: the inside of a kernel.

A gap is how far a logit is below the row's largest, and what follows is in its bits
(`engine.kernels.pivot_search`). The k largest logits are in the k groups that have the largest
maxima, for a group that is not among those holds nothing that exceeds k others. So a program looks
through the maxima of a row, reads the likeliest groups, holds their tokens, and searches among
those, for top-k and then for top-p. The row itself is not read again, unless what is held does not
weigh what top-p keeps, or k or ties ask for more than a program can hold: then the search goes over
the whole row until no more tokens are in doubt than it can.

Sources: pivots instead of a sort, after FlashInfer's sampling kernels and vLLM's Qrita.
"""

from __future__ import annotations

import triton
import triton.language as tl

from engine.kernels.pivot_search import (
    EVERYTHING,
    compact,
    gather,
    is_kept,
    load_held,
    search_held,
    search_row,
    weigh_row,
)
from engine.kernels.scan_logits import exp2_rate, has_top_k, mass_of


@triton.jit
def find_limit(
    values: tl.tensor,
    gaps: tl.tensor,
    largest: tl.tensor,
    temperature: tl.tensor,
    top_k: tl.tensor,
    top_p: tl.tensor,
    masses: tl.tensor,
    scratch: tl.tensor,
    likeliest: tl.tensor,
    num_tokens: tl.tensor,
    NUM_PARTS: tl.constexpr,
    PARTS_BLOCK: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    LIKELY: tl.constexpr,
    HELD: tl.constexpr,
    VOCAB_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Find the bits of the largest gap that top-k and then top-p keep.

    Args: `gaps`: of the groups' largest logits; NaN is no group.
    """
    rate = exp2_rate(temperature)
    limit = tl.full((), EVERYTHING, tl.int32)
    nothing = tl.full((), -1, tl.int32)
    none = tl.full((), 0, tl.int32)
    total = tl.full((), 0.0, tl.float32)
    # All tokens up to these bits are held.
    # More than these are held where they tie, or are as near.
    most = max(LIKELY * 3 // 4, 1)
    upto, held = _hold_likeliest(
        values, gaps, largest, tl.where(has_top_k(top_k, VOCAB_SIZE), top_k, most),
        likeliest, scratch, NUM_PARTS * GROUPS, GROUP, LIKELY, HELD, VOCAB_SIZE,
    )  # fmt: skip
    held_masses = mass_of(held, rate)
    if has_top_k(top_k, VOCAB_SIZE):
        if upto >= 0:
            num_held = tl.sum(is_kept(held, upto).to(tl.int32), axis=0)
            limit = _last_within(
                held, held_masses, nothing, none, none, upto, num_held, top_k, False
            )
            # Tokens that tie with the k-th survive, so they count towards the mass.
            reach = tl.div_rn(limit.to(tl.float32, bitcast=True), temperature)
            survives = tl.div_rn(held, temperature) <= reach
            total = tl.sum(tl.where(survives, held_masses, 0.0), axis=0)
        else:
            limit = _last_of_row(
                values, largest, rate, nothing, none, none, limit, num_tokens, top_k, scratch,
                False, HELD, VOCAB_SIZE, BLOCK,
            )  # fmt: skip
            limits = tl.full([4], 0, tl.int32) + limit
            _, totals = weigh_row(values, largest, rate, limits, True, VOCAB_SIZE, BLOCK)
            total = tl.max(totals, axis=0)
    else:
        total = _sum_parts(masses, gaps, rate, NUM_PARTS, PARTS_BLOCK, GROUPS)
    if top_p < 1:
        upto = tl.minimum(upto, limit)
        is_in = is_kept(held, upto)
        num_held = tl.sum(is_in.to(tl.int32), axis=0)
        mass_held = tl.sum(tl.where(is_in, held_masses, 0.0), axis=0)
        target = top_p * total
        if (upto == limit) | ((upto >= 0) & (mass_held >= target)):
            limit = _last_within(
                held, held_masses, nothing, none, none.to(tl.float32), upto, num_held, target, True
            )
        else:
            # All beyond, were every token there, would not weigh what top-p leaves out.
            far = tl.log2(VOCAB_SIZE / ((1 - top_p) * total)) / rate
            high = tl.minimum(limit, tl.maximum(far.to(tl.int32, bitcast=True), upto + 1))
            limit = _last_of_row(
                values, largest, rate, upto, num_held, mass_held, high, num_tokens, target, scratch,
                True, HELD, VOCAB_SIZE, BLOCK,
            )  # fmt: skip
    return limit


@triton.jit
def _hold_likeliest(
    values: tl.tensor,
    gaps: tl.tensor,
    largest: tl.tensor,
    num_asked: tl.tensor,
    likeliest: tl.tensor,
    scratch: tl.tensor,
    NUM_GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    LIKELY: tl.constexpr,
    HELD: tl.constexpr,
    VOCAB_SIZE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Hold the gaps of as many of the likeliest tokens as there are groups asked for, or more.

    Returns: bits, -1 where that is too much to hold; and the gaps of all tokens that these keep,
    NaN elsewhere.
    """
    upto = tl.full((), -1, tl.int32)
    held = tl.full([HELD], float("nan"), tl.float32)
    if num_asked <= LIKELY:
        none = tl.full((), 0, tl.int32)
        cut, num_groups = search_held(
            gaps, gaps, upto, none, none, none + EVERYTHING, none + NUM_GROUPS, num_asked,
            False, LIKELY,
        )  # fmt: skip
        # Groups that tie are more than were asked for.
        if num_groups <= LIKELY:
            compact(tl.arange(0, gaps.shape[0]), is_kept(gaps, cut), likeliest, LIKELY)
            # What some threads have written, others read.
            tl.debug_barrier()
            lanes = tl.arange(0, LIKELY)
            groups = tl.load(likeliest + lanes, mask=lanes < num_groups, other=VOCAB_SIZE)
            ids = groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
            logits = tl.load(values + ids, mask=ids < VOCAB_SIZE, other=float("nan"))
            found = tl.reshape(largest - logits.to(tl.float32), [LIKELY * GROUP])
            num_held = compact(found, is_kept(found, cut), scratch, HELD)
            if num_held <= HELD:
                held = load_held(scratch, num_held, HELD)
                upto = cut
    return upto, held


@triton.jit
def _last_of_row(
    values: tl.tensor,
    largest: tl.tensor,
    rate: tl.tensor,
    low: tl.tensor,
    num_low: tl.tensor,
    weight_low: tl.tensor,
    high: tl.tensor,
    num_high: tl.tensor,
    target: tl.tensor,
    scratch: tl.tensor,
    BY_MASS: tl.constexpr,
    HELD: tl.constexpr,
    VOCAB_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Find the bits of the last token of the row that the target takes in, between two bits."""
    low, num_low, weight_low, high, num_high = search_row(
        values, largest, rate, low, num_low, weight_low, high, num_high, target,
        BY_MASS, HELD, VOCAB_SIZE, BLOCK,
    )  # fmt: skip
    # More are between only if they all tie.
    if num_high - num_low <= HELD:
        held = gather(values, largest, low, high, scratch, HELD, VOCAB_SIZE, BLOCK)
        high = _last_within(
            held, mass_of(held, rate), low, num_low, weight_low, high, num_high, target, BY_MASS
        )
    return high


@triton.jit
def _last_within(
    held: tl.tensor,
    masses: tl.tensor,
    low: tl.tensor,
    num_low: tl.tensor,
    weight_low: tl.tensor,
    high: tl.tensor,
    num_high: tl.tensor,
    target: tl.tensor,
    BY_MASS: tl.constexpr,
) -> tl.tensor:
    """Find the bits of the last token held that the target takes in."""
    high, _ = search_held(
        held, masses, low, num_low, weight_low, high, num_high, target, BY_MASS, 0
    )
    bits = held.to(tl.int32, bitcast=True)
    return tl.max(tl.where(bits <= high, bits, low), axis=0)


@triton.jit
def _sum_parts(
    masses: tl.tensor,
    gaps: tl.tensor,
    rate: tl.tensor,
    NUM_PARTS: tl.constexpr,
    PARTS_BLOCK: tl.constexpr,
    GROUPS: tl.constexpr,
) -> tl.tensor:
    """Sum the masses of parts, each of which is relative to its own largest logit."""
    parts = tl.arange(0, PARTS_BLOCK)
    found = tl.load(masses + parts, mask=parts < NUM_PARTS, other=0.0)
    gaps = tl.where(gaps == gaps, gaps, float("inf"))
    nearest = tl.min(tl.reshape(gaps, [PARTS_BLOCK, GROUPS]), axis=1)
    return tl.sum(found * mass_of(nearest, rate), axis=0)
