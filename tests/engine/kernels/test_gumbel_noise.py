"""What kernels know of noise: the hashes are the sampler's, and rough bounds hold."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from engine.kernels.gumbel_noise import (
    MARGIN,
    hash_ids,
    hash_part,
    least_race,
    noise,
    row_keys,
)
from engine.kernels.scan_logits import exp2_rate
from engine.sampling import sampler

BLOCK = 4096


@triton.jit
def _hash_kernel(
    seed: tl.tensor,
    position: tl.tensor,
    begin: tl.constexpr,
    by_id: tl.tensor,
    by_part: tl.tensor,
    noises: tl.tensor,
    PART: tl.constexpr,
) -> None:
    low, high = row_keys(tl.load(seed), tl.load(position))
    offsets = tl.arange(0, PART)
    bits = hash_ids(begin + offsets, low, high)
    tl.store(by_id + offsets, bits.to(tl.int32))
    first = tl.full((), begin, tl.int32)
    tl.store(by_part + offsets, hash_part(first, offsets, low, high).to(tl.int32))
    tl.store(noises + offsets, noise(bits))


@triton.jit
def _bound_kernel(
    bits: tl.tensor,
    gaps: tl.tensor,
    temperature: tl.tensor,
    values: tl.tensor,
    races: tl.tensor,
    SIZE: tl.constexpr,
) -> None:
    lanes = tl.arange(0, SIZE)
    found, gap = tl.load(bits + lanes), tl.load(gaps + lanes)
    one = tl.load(temperature)
    tl.store(values + lanes, tl.div_rn(-gap, one) + noise(found))
    tl.store(races + lanes, least_race(found, gap * exp2_rate(one)))


@pytest.mark.parametrize("begin", [0, 2048, 1 << 16, (1 << 17) + 6144])
def test_noise_is_the_samplers(begin: int, device: torch.device) -> None:
    """Ids hash alone and as a part of a row to the same bits, and these to the sampler's noise."""
    seed, position = 0xFEDC_BA98_7654_3210, 4321
    found = [torch.empty(2048, dtype=torch.int32, device=device) for _ in range(2)]
    noises = torch.empty(2048, device=device)
    _hash_kernel[(1,)](
        torch.from_numpy(np.array([seed], np.uint64).view(np.int64)).to(device),
        torch.tensor([position], dtype=torch.int32, device=device),
        begin,
        *found,
        noises,
        PART=2048,
    )
    assert torch.equal(*found)
    rows = sampler.SamplingRows(
        temperature=np.ones(1, np.float32),
        top_k=np.zeros(1, np.int64),
        top_p=np.ones(1, np.float32),
        min_p=np.zeros(1, np.float32),
        seeds=np.array([seed], np.uint64),
        positions=np.array([position]),
    )
    wanted = sampler._gumbel_noise(rows, begin + 2048)[0, begin:]
    torch.testing.assert_close(noises.cpu(), wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 0.37, 1e-3, 30.0])
def test_no_value_exceeds_its_bound(temperature: float, device: torch.device) -> None:
    """A token that could win is never above what its race says and the margin, whatever its U.

    The margin is needed, and has more than what is needed.
    """
    generator = np.random.default_rng(round(temperature * 1000))
    # All sizes of U, the least, the largest, and where its rounding reaches 1.
    bits = (2 ** generator.uniform(0, 31, BLOCK)).astype(np.int64)
    bits[: BLOCK // 4] = 2**31 - 1 - bits[: BLOCK // 4]
    bits[:6] = [0, 1, 2**31 - 1, 2**31 - 2, 2**30, 2**31 - 65]
    # As far as a token can be that wins.
    gaps = generator.uniform(0, 25 * temperature, BLOCK).astype(np.float32)
    gaps[::5] = 0
    values, races = (torch.empty(BLOCK, device=device) for _ in range(2))
    _bound_kernel[(1,)](
        torch.from_numpy(bits.clip(0, 2**31 - 1).astype(np.int32)).to(device),
        torch.from_numpy(gaps).to(device),
        torch.tensor([temperature], device=device),
        values,
        races,
        SIZE=BLOCK,
    )
    excess = (values.double() + races.double().log()).cpu()
    assert float(excess.max()) < MARGIN.value / 8
    assert not bool((excess <= 0).all())
    # The bound is tight where U is small, as it is of tokens that are drawn.
    is_small = torch.from_numpy(bits < 2**25)
    assert float(excess[is_small].min()) > -MARGIN.value


@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_a_race_is_never_too_long_for_a_float(device: torch.device) -> None:
    """A token that is hidden, or much too far away, has an infinite race; the nearest never has."""
    gaps = np.array([0, np.inf, 1e30, 60], np.float32)
    values, races = (torch.empty(4, device=device) for _ in range(2))
    for temperature in (1e-30, 1e-3):
        _bound_kernel[(1,)](
            torch.full((4,), 5, dtype=torch.int32, device=device),
            torch.from_numpy(gaps).to(device),
            torch.tensor([temperature], device=device),
            values,
            races,
            SIZE=4,
        )
        assert 0 < float(races[0]) < 1
        assert races[1:].tolist() == [np.inf] * 3
