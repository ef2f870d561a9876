"""Noise of a draw from (seed, position, token id) alone: the inside of kernels.

**Exactly.** `hash_ids` and `noise` are what `engine.sampling.sampler` says, in its order. A token's
value is its tempered logit and its noise; the largest value is drawn.

**Roughly.** Noise is -log E with E = -log(1 - U), so that the largest value is the least
E * exp(gap / temperature), a race; `gap` is how far a logit is below the row's largest.
`least_race` bounds it from below without a logarithm, as E = U + U^2/2 + U^3/3 + ... has no
negative term: three terms are short by U^3/4 and a little, which is nothing for the small U of
tokens that are drawn, and by a factor of 9.1 at most.

**How far a bound can be from what is exact.** Call a token's value v and its bound b = -log(race).
In real numbers v <= b. Let v be at least the row's best, and so at least -2.82: that is the least
noise, and the likeliest token's value is its noise. The largest noise is 22.2 (U = 2^-32), so the
token's gap / temperature is at most 25.1. Rounding, each step relative to its result (u = 2^-24):

- The exponent of two, gap * rate, is rounded three times (rate twice) and at most 36.2: 36.2 * 3u,
  times log 2, is 4.5e-6. A GPU's exp2 adds 2^-22, the polynomial and the product 5u: 6e-7.
- v: the quotient is off by 25.1u; two logarithms by two units in the last place, which is 5u of E
  and 22.2 * 4u of the noise; the sum by 32u: 9e-6 in all.

So v <= b + 1.5e-5. `MARGIN` is sixteen times that: it costs a second look at one row in four
thousand. Where a race overflows, its token's value is below -88, and never the best.
"""

from __future__ import annotations

import triton
import triton.language as tl

# What a bound may be short of an exact value by, as a difference of logarithms.
MARGIN = tl.constexpr(2.0**-12)
# As bits, above every race; as a float, NaN.
NOTHING = tl.constexpr(0x7FFFFFFF)


@triton.jit
def row_keys(seed: tl.tensor, position: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """Hash a row's seed and position to two words of 32 bits."""
    key = _split_mix(seed.to(tl.uint64, bitcast=True))
    key = _split_mix(key + position.to(tl.uint64))
    return key.to(tl.uint32), (key >> 32).to(tl.uint32)


@triton.jit
def hash_ids(ids: tl.tensor, low: tl.tensor, high: tl.tensor) -> tl.tensor:
    """Hash token ids with a row's keys to 31 bits."""
    mixed = ids.to(tl.uint32) ^ low
    return _hash_rest(mixed ^ (mixed >> 16), high)


@triton.jit
def hash_part(begin: tl.tensor, offsets: tl.tensor, low: tl.tensor, high: tl.tensor) -> tl.tensor:
    """Hash the ids `begin` + `offsets`; `begin` is a multiple of what offsets are below.

    That is a power of two up to 2^16: the upper halves of the ids are all the same, and so the
    first shift is the part's and not each token's.
    """
    start = begin.to(tl.uint32) ^ low
    return _hash_rest(offsets.to(tl.uint32) ^ (start ^ (start >> 16)), high)


@triton.jit
def noise(bits: tl.tensor) -> tl.tensor:
    """Make noise from 31 bits; see `engine.sampling.sampler`."""
    uniform = (bits.to(tl.int32).to(tl.float32) + 0.5) * 4.656612873077393e-10  # 2^-31
    uniform = tl.minimum(uniform, 0.99999994)  # 1 - 2^-24
    return -tl.log(-_log1p(-uniform))


@triton.jit
def least_race(bits: tl.tensor, exponent: tl.tensor) -> tl.tensor:
    """Bound a token's race from below; the more it is, the less likely is the token.

    Args: `bits`: 31 of them. `exponent`: the token's gap / temperature, times log2(e).
    """
    # U * 2^31, so that the factors are 2^-31, 2^-63 and 2^-93 / 3.
    scaled = bits.to(tl.int32).to(tl.float32) + 0.5
    short = 1.0842021724855044e-19 + scaled * 3.3658065289429835e-29
    return scaled * (4.656612873077393e-10 + scaled * short) * tl.exp2(exponent)


@triton.jit
def _log1p(x: tl.tensor) -> tl.tensor:
    """Compute log(1 + x), exact to rounding for small x too (Kahan; Goldberg 1991, theorem 4)."""
    shifted = 1.0 + x
    kept = shifted - 1.0
    is_lost = kept == 0.0
    kept = tl.where(is_lost, 1.0, kept)
    return tl.where(is_lost, x, tl.log(shifted) * tl.div_rn(x, kept))


@triton.jit
def _hash_rest(mixed: tl.tensor, high: tl.tensor) -> tl.tensor:
    """Do what comes after the first shift."""
    mixed = mixed * 0x7FEB352D
    mixed = (mixed ^ (mixed >> 15)) * 0x846CA68B
    mixed = (mixed ^ (mixed >> 16)) + high
    mixed = (mixed ^ (mixed >> 16)) * 0x7FEB352D
    mixed = (mixed ^ (mixed >> 15)) * 0x846CA68B
    return (mixed ^ (mixed >> 16)) & 0x7FFFFFFF


@triton.jit
def _split_mix(x: tl.tensor) -> tl.tensor:
    x = x + 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)
