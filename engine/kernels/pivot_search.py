"""Find by bisection which tokens of a row are likely enough: the inside of a kernel.

A token's gap is how far its logit is below the row's largest. Gaps are not negative, and such
floats are in the order of their bits, so integers part them exactly. A search narrows two bits,
`low` and `high`: what `high` keeps, tokens of those bits or fewer, weighs at least a target, what
`low` keeps does not. The weight is the number of tokens, or their mass: the sum of
exp(-gap / temperature). Four pivots a pass leave a fifth of what is between, by value as long as
that is quick, then by bits, which ends it. Sums are made in a fixed order.

A pass goes over the row, or over the tokens that a program holds: at least all between the two.
"""

from __future__ import annotations

import triton
import triton.language as tl

from engine.kernels.scan_logits import mass_of

# The bits of an infinite gap: none is beyond. Those of NaN, which is no token's gap, are.
EVERYTHING = tl.constexpr(0x7F800000)
_NUM_PIVOTS = tl.constexpr(4)


@triton.jit
def is_kept(gap: tl.tensor, high: tl.tensor) -> tl.tensor:
    """Tell which tokens bits keep."""
    return gap.to(tl.int32, bitcast=True) <= high


@triton.jit
def search_held(
    held: tl.tensor,
    masses: tl.tensor,
    low: tl.tensor,
    num_low: tl.tensor,
    weight_low: tl.tensor,
    high: tl.tensor,
    num_high: tl.tensor,
    target: tl.tensor,
    BY_MASS: tl.constexpr,
    ENOUGH: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Lower `high` until it parts tokens as the least bits do that weigh the target.

    It ends early once `high` keeps no more than ENOUGH tokens. Args: `held`: gaps, NaN where there
    is no token. `masses`: theirs. `num_low`, `weight_low`: what `low` keeps, none of which is held.
    `num_high`: how many tokens `high` keeps.
    Returns: `high` and `num_high`.
    """
    bits = held.to(tl.int32, bitcast=True)
    num_base, weight_base = num_low, weight_low
    weight_high = target + 1
    num_passes = 0
    # A weight of just the target leaves none to drop.
    while (high - low > 1) & (num_high > ENOUGH) & (weight_high > target):
        pivots = _choose_pivots(low, high, num_passes)
        is_in = bits[:, None] <= pivots[None, :]
        nums = num_base + tl.sum(is_in.to(tl.int32), axis=0)
        if BY_MASS:
            weights = weight_base + tl.sum(tl.where(is_in, masses[:, None], 0.0), axis=0)
        else:
            weights = nums
        low, num_low, weight_low, high, num_high, weight_high = _narrow(
            pivots, nums, weights, target, low, num_low, weight_low, high, num_high, weight_high
        )
        # Up to the tokens between, which leaves nothing where they all tie.
        is_between = (bits > low) & (bits <= high)
        last = tl.max(tl.where(is_between, bits, low), axis=0)
        low = tl.min(tl.where(is_between, bits, high), axis=0) - 1
        high = last
        num_passes += 1
    return high, num_high


@triton.jit
def search_row(
    values: tl.tensor,
    largest: tl.tensor,
    rate: tl.tensor,
    low: tl.tensor,
    num_low: tl.tensor,
    weight_low: tl.tensor,
    high: tl.tensor,
    num_high: tl.tensor,
    target: tl.tensor,
    BY_MASS: tl.constexpr,
    ENOUGH: tl.constexpr,
    VOCAB_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tuple[tl.tensor, ...]:
    """Narrow `low` and `high` until no more than ENOUGH tokens are between, if that can be.

    Args: `values`: the row's logits. `num_high`: at least how many tokens `high` keeps.
    Returns: `low`, `num_low`, `weight_low`, `high` and `num_high`.
    """
    weight_high = target + 1
    num_passes = 0
    while (high - low > 1) & (num_high - num_low > ENOUGH):
        pivots = _choose_pivots(low, high, num_passes)
        nums, weights = weigh_row(values, largest, rate, pivots, BY_MASS, VOCAB_SIZE, BLOCK)
        low, num_low, weight_low, high, num_high, weight_high = _narrow(
            pivots, nums, weights, target, low, num_low, weight_low, high, num_high, weight_high
        )
        num_passes += 1
    return low, num_low, weight_low, high, num_high


@triton.jit
def weigh_row(
    values: tl.tensor,
    largest: tl.tensor,
    rate: tl.tensor,
    pivots: tl.tensor,
    BY_MASS: tl.constexpr,
    VOCAB_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Count the tokens of the row that each of four bits keeps, and weigh them."""
    lanes = tl.arange(0, _NUM_PIVOTS)
    # One by one: with another axis for the pivots, every thread would compute for each what is a
    # token's.
    first, second = _nth(pivots, lanes, 0), _nth(pivots, lanes, 1)
    third, fourth = _nth(pivots, lanes, 2), _nth(pivots, lanes, 3)
    num_1 = tl.zeros([BLOCK], tl.int32)
    num_2, num_3, num_4 = num_1, num_1, num_1
    mass_1 = tl.zeros([BLOCK], tl.float32)
    mass_2, mass_3, mass_4 = mass_1, mass_1, mass_1
    for begin in tl.range(0, VOCAB_SIZE, BLOCK, num_stages=3):
        gap = _load_gaps(values, largest, begin, VOCAB_SIZE, BLOCK)
        num_1 += is_kept(gap, first).to(tl.int32)
        num_2 += is_kept(gap, second).to(tl.int32)
        num_3 += is_kept(gap, third).to(tl.int32)
        num_4 += is_kept(gap, fourth).to(tl.int32)
        if BY_MASS:
            mass = mass_of(gap, rate)
            mass_1 += tl.where(is_kept(gap, first), mass, 0.0)
            mass_2 += tl.where(is_kept(gap, second), mass, 0.0)
            mass_3 += tl.where(is_kept(gap, third), mass, 0.0)
            mass_4 += tl.where(is_kept(gap, fourth), mass, 0.0)
    nums = _four_sums(lanes, num_1, num_2, num_3, num_4)
    if BY_MASS:
        return nums, _four_sums(lanes, mass_1, mass_2, mass_3, mass_4)
    else:
        return nums, nums


@triton.jit
def gather(
    values: tl.tensor,
    largest: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    scratch: tl.tensor,
    HELD: tl.constexpr,
    VOCAB_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Hold the gaps of the tokens that `high` keeps and `low` does not, in a fixed order.

    There are HELD at most. Args: `scratch`: room for them.
    """
    # A lane's tokens lie together, behind those of the lanes before it. To count first costs a
    # pass, but to count what is before each token would cost four.
    num = tl.zeros([BLOCK], tl.int32)
    for begin in tl.range(0, VOCAB_SIZE, BLOCK, num_stages=3):
        gap = _load_gaps(values, largest, begin, VOCAB_SIZE, BLOCK)
        num += (is_kept(gap, high) & ~is_kept(gap, low)).to(tl.int32)
    places = tl.cumsum(num, axis=0) - num
    for begin in tl.range(0, VOCAB_SIZE, BLOCK, num_stages=3):
        gap = _load_gaps(values, largest, begin, VOCAB_SIZE, BLOCK)
        is_between = is_kept(gap, high) & ~is_kept(gap, low)
        tl.store(scratch + places, gap, mask=is_between & (places < HELD))
        places += is_between.to(tl.int32)
    return load_held(scratch, tl.sum(num, axis=0), HELD)


@triton.jit
def compact(
    found: tl.tensor, is_one: tl.tensor, scratch: tl.tensor, MOST: tl.constexpr
) -> tl.tensor:
    """Store some of what was found side by side, MOST at most; returns how many there are."""
    places = tl.cumsum(is_one.to(tl.int32), axis=0) - 1
    tl.store(scratch + places, found, mask=is_one & (places < MOST))
    return tl.sum(is_one.to(tl.int32), axis=0)


@triton.jit
def load_held(scratch: tl.tensor, num: tl.tensor, HELD: tl.constexpr) -> tl.tensor:
    """Load what was stored there; NaN beyond."""
    # What some threads have written, others read.
    tl.debug_barrier()
    lanes = tl.arange(0, HELD)
    return tl.load(scratch + lanes, mask=lanes < num, other=float("nan"))


@triton.jit
def _load_gaps(
    values: tl.tensor,
    largest: tl.tensor,
    begin: tl.tensor,
    VOCAB_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Load how far tokens are below the largest; NaN beyond the vocabulary."""
    ids = begin + tl.arange(0, BLOCK)
    logits = tl.load(values + ids, mask=ids < VOCAB_SIZE, other=float("nan")).to(tl.float32)
    # A NaN of positive sign, which arithmetic need not leave.
    return tl.abs(largest - logits)


@triton.jit
def _nth(numbers: tl.tensor, lanes: tl.tensor, n: tl.constexpr) -> tl.tensor:
    return tl.sum(tl.where(lanes == n, numbers, 0), axis=0)


@triton.jit
def _four_sums(
    lanes: tl.tensor, first: tl.tensor, second: tl.tensor, third: tl.tensor, fourth: tl.tensor
) -> tl.tensor:
    two = tl.where(lanes == 0, tl.sum(first, axis=0), tl.sum(second, axis=0))
    others = tl.where(lanes == 2, tl.sum(third, axis=0), tl.sum(fourth, axis=0))
    return tl.where(lanes < 2, two, others)


@triton.jit
def _narrow(
    pivots: tl.tensor,
    nums: tl.tensor,
    weights: tl.tensor,
    target: tl.tensor,
    low: tl.tensor,
    num_low: tl.tensor,
    weight_low: tl.tensor,
    high: tl.tensor,
    num_high: tl.tensor,
    weight_high: tl.tensor,
) -> tuple[tl.tensor, ...]:
    """Take the least pivot that weighs the target as `high`, and the one before it as `low`.

    What a pivot keeps, and weighs, is no less than what those before it do.
    """
    is_enough = weights >= target
    return (
        tl.max(tl.where(is_enough, low, pivots), axis=0),
        tl.max(tl.where(is_enough, num_low, nums), axis=0),
        tl.max(tl.where(is_enough, weight_low, weights), axis=0),
        tl.min(tl.where(is_enough, pivots, high), axis=0),
        tl.min(tl.where(is_enough, nums, num_high), axis=0),
        tl.min(tl.where(is_enough, weights, weight_high), axis=0),
    )


@triton.jit
def _choose_pivots(low: tl.tensor, high: tl.tensor, num_passes: tl.tensor) -> tl.tensor:
    """Choose bits above `low`, up to `high`, in order."""
    steps = tl.arange(0, _NUM_PIVOTS) + 1
    if num_passes < 8:
        begin = tl.maximum(low, 0).to(tl.float32, bitcast=True)
        if high == EVERYTHING:
            # Most of what filters keep is within 4 to 16 of the largest logit: 2, 6, 14, 30.
            pivots = begin + (tl.exp2(steps.to(tl.float32)) - 1) * tl.maximum(begin, 2.0)
        else:
            width = high.to(tl.float32, bitcast=True) - begin
            pivots = begin + width * (steps.to(tl.float32) / (_NUM_PIVOTS + 1))
        pivots = pivots.to(tl.int32, bitcast=True)
    else:
        pivots = low + steps * ((high - low + _NUM_PIVOTS) // (_NUM_PIVOTS + 1))
    return tl.minimum(tl.maximum(pivots, low + steps), high)
