"""The norm with its residual and the gated unit: kernels, their twins, and the model's own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.kernels.rms_norm import add_rms_norm
from engine.kernels.silu_mul import silu_mul
from engine.kernels.twins import norms
from engine.models import layers

EPS = 1e-5


def make(*sizes: int, device: torch.device, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*sizes, generator=generator).to(device)


def close(actual: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(actual, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [64, 96, 1000])
@pytest.mark.parametrize("has_residual", [False, True])
def test_kernel_norms_what_its_twin_norms(
    size: int, has_residual: bool, device: torch.device
) -> None:
    """Rows of any width, with a residual and without, are added and normed alike."""
    x, weight = make(3, size, device=device), make(size, device=device, seed=1)
    residual = make(3, size, device=device, seed=2) if has_residual else None
    for actual, wanted in zip(
        add_rms_norm(x, residual, weight, EPS),
        norms.add_rms_norm(x, residual, weight, EPS),
        strict=True,
    ):
        close(actual, wanted)


def test_twin_norms_what_the_model_norms(device: torch.device) -> None:
    """The twin is the model's addition and norm, one after the other."""
    x, residual = make(5, 96, device=device), make(5, 96, device=device, seed=1)
    weight = make(96, device=device, seed=2)
    normed, total = norms.add_rms_norm(x, residual, weight, EPS)
    close(total, x + residual)
    close(normed, layers.rms_norm(x + residual, weight, EPS))


def test_rows_that_lie_apart_are_read_where_they_are(device: torch.device) -> None:
    """A slice of a wider tensor is normed like a copy of it."""
    wide, weight = make(3, 160, device=device), make(64, device=device, seed=1)
    x, residual = wide[:, :64], wide[:, 96:]
    normed, total = add_rms_norm(x, residual, weight, EPS)
    wanted, wanted_total = norms.add_rms_norm(x, residual, weight, EPS)
    close(normed, wanted)
    close(total, wanted_total)


@pytest.mark.parametrize("has_residual", [False, True])
def test_rows_may_be_chosen(has_residual: bool, device: torch.device) -> None:
    """Some rows, in any order, one of them twice, come out as they do among all."""
    x, weight = make(5, 96, device=device), make(96, device=device, seed=1)
    residual = make(5, 96, device=device, seed=2) if has_residual else None
    rows = torch.tensor([4, 0, 0, 2], dtype=torch.int32, device=device)
    wanted = norms.add_rms_norm(x, residual, weight, EPS)
    for how in (add_rms_norm, norms.add_rms_norm):
        for part, whole in zip(how(x, residual, weight, EPS, rows), wanted, strict=True):
            close(part, whole[rows])


@pytest.mark.parametrize("size", [48, 1500])
def test_kernel_gates_what_its_twin_gates(size: int, device: torch.device) -> None:
    """Rows of one block and of several are gated alike."""
    gate_up = make(3, 2 * size, device=device) * 4
    close(silu_mul(gate_up), norms.silu_mul(gate_up))


def test_twin_gates_what_the_model_gates(device: torch.device) -> None:
    """The twin is the model's gated unit."""
    gate_up = make(3, 96, device=device) * 4
    close(norms.silu_mul(gate_up), layers.silu_mul(gate_up.clone()))


def test_no_tokens_are_no_work(device: torch.device) -> None:
    """An empty batch gives empty results."""
    x = make(0, 64, device=device)
    assert [len(part) for part in add_rms_norm(x, x, x.new_ones(64), EPS)] == [0, 0]
    assert silu_mul(x).shape == (0, 32)


@pytest.mark.gpu
def test_half_precision_is_rounded_once(device: torch.device) -> None:
    """In bfloat16 the kernels differ from their twins by a rounding at most."""
    if device.type != "cuda":
        pytest.skip("the interpreter has no bfloat16")
    x, residual = (make(64, 2560, device=device, seed=seed).bfloat16() for seed in (0, 1))
    weight = make(2560, device=device, seed=2).bfloat16()
    normed, total = add_rms_norm(x, residual, weight, EPS)
    wanted, wanted_total = norms.add_rms_norm(x, residual, weight, EPS)
    torch.testing.assert_close(total, wanted_total, rtol=0, atol=0)
    torch.testing.assert_close(normed, wanted, rtol=2**-7, atol=1e-6)
    torch.testing.assert_close(silu_mul(x), norms.silu_mul(x), rtol=2**-7, atol=1e-6)
