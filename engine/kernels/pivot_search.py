"""Find by bisection which tokens of a row are likely enough: the inside of a kernel.

A token's distance is how far its tempered logit is below the row's largest. Distances are not
negative, and such floats are in the order of their bits, so integers part them exactly. A search
narrows two bits, `low` and `high`: what `high` keeps, tokens of those bits or fewer, weighs at
least a target, what `low` keeps does not. The weight is the number of tokens, or their mass: the
sum of exp(-distance). Three pivots a pass quarter what is between, by value as long as that is
quick, then by bits, which ends it. Sums are made in a fixed order.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def search(
    values: tl.tensor,
    largest: tl.tensor,
    temperature: tl.tensor,
    held: tl.tensor,
    high: tl.tensor,
    num_high: tl.tensor,
    target: tl.tensor,
    share: tl.tensor,
    BY_MASS: tl.constexpr,
    IS_HELD: tl.constexpr,
    ENOUGH: tl.constexpr,
    VOCAB_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Lower `high` until it parts tokens as the least bits do that weigh the target.

    It ends early once `high` keeps no more than ENOUGH tokens. Args: `values`: the row's logits.
    `held`: distances of some of its tokens, NaN where there is none; IS_HELD: they are all that
    count. `num_high`: at least how many tokens `high` keeps. `target`: a number of tokens, or
    a mass; a negative one is not known yet, and is `share` of the mass that `high` keeps.
    Returns: `high`, `num_high` and the target.
    """
    low = tl.full((), -1, tl.int32)
    num_low = tl.full((), 0, tl.int32)
    if BY_MASS:
        high_weight = tl.full((), float("inf"), tl.float32)
    else:
        high_weight = num_high
    num_passes = 0
    # One token between is that of `high`; a weight of just the target leaves none to drop.
    while (
        (high - low > 1) & (num_high - num_low > 1) & (num_high > ENOUGH) & (high_weight > target)
    ):
        first, second, third = _choose_pivots(low, high, temperature, num_passes)
        if BY_MASS:
            third = tl.where(target < 0, high, third)
        if IS_HELD:
            num_1, num_2, num_3, weight_1, weight_2, weight_3 = _weigh_held(
                held, first, second, third, BY_MASS
            )
        else:
            num_1, num_2, num_3, weight_1, weight_2, weight_3 = _weigh_row(
                values, largest, temperature, first, second, third, BY_MASS, VOCAB_SIZE, BLOCK
            )
        if BY_MASS:
            target = tl.where(target < 0, share * weight_3, target)
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
        num_passes += 1
    return high, num_high, target


@triton.jit
def _choose_pivots(
    low: tl.tensor, high: tl.tensor, temperature: tl.tensor, num_passes: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Choose three bits above `low`, up to `high`, in order."""
    if num_passes < 8:
        begin = tl.maximum(low, 0).to(tl.float32, bitcast=True)
        if high == 0x7F800000:
            # Most of what filters keep is within 4 to 16 of the largest logit.
            begin = tl.maximum(begin, tl.div_rn(2.0, temperature))
            step_1, step_2, step_3 = begin, begin * 3, begin * 7
        else:
            quarter = (high.to(tl.float32, bitcast=True) - begin) * 0.25
            step_1, step_2, step_3 = quarter, quarter * 2, quarter * 3
        first = (begin + step_1).to(tl.int32, bitcast=True)
        second = (begin + step_2).to(tl.int32, bitcast=True)
        third = (begin + step_3).to(tl.int32, bitcast=True)
    else:
        step = (high - low + 3) // 4
        first, second, third = low + step, low + step * 2, low + step * 3
    first = tl.minimum(tl.maximum(first, low + 1), high)
    second = tl.minimum(tl.maximum(second, first), high)
    return first, second, tl.minimum(tl.maximum(third, second), high)


@triton.jit
def _weigh_row(
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
    """Count the tokens of the row that each of three bits keeps, and weigh them."""
    num_1 = tl.zeros([BLOCK], tl.int32)
    num_2 = tl.zeros([BLOCK], tl.int32)
    num_3 = tl.zeros([BLOCK], tl.int32)
    mass_1 = tl.zeros([BLOCK], tl.float32)
    mass_2 = tl.zeros([BLOCK], tl.float32)
    mass_3 = tl.zeros([BLOCK], tl.float32)
    for begin in range(0, VOCAB_SIZE, BLOCK):
        distance = load_distances(values, largest, temperature, begin, VOCAB_SIZE, BLOCK)
        is_1, is_2, is_3 = _kept(distance, first), _kept(distance, second), _kept(distance, third)
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


@triton.jit
def _weigh_held(
    held: tl.tensor,
    first: tl.tensor,
    second: tl.tensor,
    third: tl.tensor,
    BY_MASS: tl.constexpr,
) -> tuple[tl.tensor, ...]:
    """Do so for the tokens that are held."""
    is_1, is_2, is_3 = _kept(held, first), _kept(held, second), _kept(held, third)
    num_1 = tl.sum(is_1.to(tl.int32), axis=0)
    num_2 = tl.sum(is_2.to(tl.int32), axis=0)
    num_3 = tl.sum(is_3.to(tl.int32), axis=0)
    if BY_MASS:
        mass = tl.exp(-held)
        mass_1 = tl.sum(tl.where(is_1, mass, 0.0), axis=0)
        mass_2 = tl.sum(tl.where(is_2, mass, 0.0), axis=0)
        mass_3 = tl.sum(tl.where(is_3, mass, 0.0), axis=0)
        return num_1, num_2, num_3, mass_1, mass_2, mass_3
    else:
        return num_1, num_2, num_3, num_1, num_2, num_3


@triton.jit
def gather(
    values: tl.tensor,
    largest: tl.tensor,
    temperature: tl.tensor,
    high: tl.tensor,
    scratch: tl.tensor,
    HELD: tl.constexpr,
    VOCAB_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Hold the distances of the tokens that `high` keeps, HELD at most, in their order."""
    num_before = tl.full((), 0, tl.int32)
    for begin in range(0, VOCAB_SIZE, BLOCK):
        distance = load_distances(values, largest, temperature, begin, VOCAB_SIZE, BLOCK)
        is_kept = _kept(distance, high)
        num_kept = tl.sum(is_kept.to(tl.int32), axis=0)
        if num_kept > 0:
            places = num_before + tl.cumsum(is_kept.to(tl.int32), axis=0) - 1
            tl.store(scratch + places, distance, mask=is_kept & (places < HELD))
        num_before += num_kept
    # What some threads have written, others read.
    tl.debug_barrier()
    lanes = tl.arange(0, HELD)
    return tl.load(scratch + lanes, mask=lanes < num_before, other=float("nan"))


@triton.jit
def load_distances(
    values: tl.tensor,
    largest: tl.tensor,
    temperature: tl.tensor,
    begin: tl.tensor,
    VOCAB_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Load how far tokens are below the largest; NaN beyond the vocabulary."""
    ids = begin + tl.arange(0, BLOCK)
    logits = tl.load(values + ids, mask=ids < VOCAB_SIZE, other=float("nan")).to(tl.float32)
    return tl.abs(tl.div_rn(logits - largest, temperature))


@triton.jit
def _kept(distance: tl.tensor, high: tl.tensor) -> tl.tensor:
    # The bits of a positive NaN are beyond those of infinity.
    return distance.to(tl.int32, bitcast=True) <= high
