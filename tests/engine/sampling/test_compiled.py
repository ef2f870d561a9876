"""The compiled draw against its twin in torch: the same tokens, and none of the noise left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from engine.sampling.sampler import SamplingRows, _gumbel_noise, _temper, sample


def rows_of(num_rows: int, temperature: float, **changes: Any) -> SamplingRows:
    generator = np.random.default_rng(num_rows)
    return SamplingRows(
        temperature=np.full(num_rows, temperature, np.float32),
        top_k=np.full(num_rows, changes.get("top_k", 0), np.int64),
        top_p=np.full(num_rows, changes.get("top_p", 1.0), np.float32),
        min_p=np.full(num_rows, changes.get("min_p", 0.0), np.float32),
        seeds=generator.integers(0, 2**63, num_rows).astype(np.uint64),
        positions=generator.integers(0, 10_000, num_rows),
    )


def drawn(logits: torch.Tensor, rows: SamplingRows, *, native: bool) -> NDArray[np.int64]:
    token_ids, failed = sample(logits, rows, native=native)
    assert not failed.any()
    return token_ids


@pytest.mark.parametrize("scale", [0.0, 0.05, 3.0, 30.0], ids=str)
@pytest.mark.parametrize("size", [1, 15, 16, 17, 300, 4097])
def test_what_is_drawn_is_what_the_twin_draws(
    native_library: bool, size: int, scale: float
) -> None:
    """Flat rows and steep ones, of any size, give the twin's tokens, but for ties to rounding."""
    if not native_library:
        return
    logits = torch.randn(400, size, generator=torch.Generator().manual_seed(size)) * scale
    for temperature in (1e-3, 0.7, 1.0, 50.0):
        rows = rows_of(400, temperature)
        ours, twins = (drawn(logits, rows, native=native) for native in (True, False))
        score = _temper(logits, rows.temperature) + _gumbel_noise(rows, size)
        every = np.arange(400)
        behind = (score[every, twins] - score[every, ours]).abs()
        # A last bit of the logarithms, and of what they are added to.
        assert behind.max() <= 1e-5 * max(1.0, float(score[every, twins].abs().max()))
        assert (ours != twins).sum() <= 2


@pytest.mark.parametrize(
    "filters",
    [
        {"top_k": 5},
        {"top_p": 0.6},
        {"top_p": 0.0},
        {"min_p": 0.1},
        {"top_k": 40, "top_p": 0.9, "min_p": 0.01},
    ],
    ids=str,
)
@pytest.mark.parametrize(("size", "scale"), [(257, 2.0), (3001, 2.0), (3001, 1e-4)], ids=str)
def test_filters_hold_as_in_the_twin(
    native_library: bool, size: int, scale: float, filters: dict[str, Any]
) -> None:
    """Top-k, top-p and min-p leave the same tokens to draw from, beside rows without any."""
    if not native_library:
        return
    logits = torch.randn(600, size, generator=torch.Generator().manual_seed(1)) * scale
    if len(filters) == 1:
        # Ties, all of which stay where one does. Of top-k's the twin weighs only k for top-p.
        logits[:50] = (logits[:50] / scale).round() * scale
    rows = rows_of(600, 0.8, **filters)
    # Every third row is greedy, and every third has no filter.
    rows.temperature[::3] = 0.0
    rows.top_k[1::3], rows.top_p[1::3], rows.min_p[1::3] = 0, 1.0, 0.0
    ours, twins = (drawn(logits, rows, native=native) for native in (True, False))
    assert (ours != twins).sum() <= 1
    assert ours[::3].tolist() == logits[::3].argmax(dim=-1).tolist()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_logit_that_is_not_finite_fails_its_row(
    native_library: bool, bad: float, temperature: float
) -> None:
    """A fault is reported wherever it is, and the other rows are drawn as without it."""
    if not native_library:
        return
    rows = rows_of(3, temperature)
    rows.temperature[0] = 1.0
    for place in (0, 70, 129):
        logits = torch.arange(130.0).repeat(3, 1)
        wanted, _ = sample(logits, rows, native=True)
        logits[1, place] = bad
        token_ids, failed = sample(logits, rows, native=True)
        assert failed.tolist() == [False, True, False]
        assert (token_ids[0], token_ids[2]) == (wanted[0], wanted[2])
