"""Rows in 8 bits: the kernel and its twin."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.quantize_rows import quantize_rows
from engine.kernels.twins.quantize_rows import quantize_rows as quantize_rows_twin
from engine.models.linear import Linear
from engine.models.quantization import Fp8Linear, multiply_scaled, multiply_twin


def test_kernel_is_as_its_twin(device: torch.device) -> None:
    """Every row has the twin's scale and numbers, whatever its stride, size and content."""
    wide = torch.randn(5, 304, generator=torch.Generator().manual_seed(0)).to(device)
    x = wide[:, :176]
    x[1] = 0
    x[2] *= 1e-6
    x[3, 7] = torch.nan
    values, scales = quantize_rows(x)
    expected_values, expected_scales = quantize_rows_twin(x)
    finite = [0, 1, 2, 4]
    assert torch.equal(scales[finite], expected_scales[finite])
    found, expected = values.float()[finite], expected_values.float()[finite]
    if device.type == "cpu":
        # Triton's interpreter loses the carry where a number rounds up to the next power of two.
        carried = expected.abs().log2().frac().eq(0) & (2 * found == expected)
        found = torch.where(carried, expected, found)
    assert torch.equal(found, expected)
    assert scales[3].isnan().all()
    assert expected_scales[3].isnan().all()


def test_no_rows(device: torch.device) -> None:
    """Nothing is launched for nothing."""
    values, scales = quantize_rows(torch.empty(0, 32, device=device))
    assert values.shape == (0, 32)
    assert scales.shape == (0, 1)


@pytest.mark.parametrize("num_rows", [1, 7, 130])
def test_products_on_the_device(device: torch.device, num_rows: int) -> None:
    """However many rows, the device's product is the twin's, but for how it adds and rounds."""
    generator = torch.Generator().manual_seed(num_rows)
    linear = Fp8Linear(Linear(torch.randn(1024, 96, generator=generator).to(device)))
    values, scales = quantize_rows_twin(torch.randn(num_rows, 1024, generator=generator) * 50)
    operands = values.to(device), scales.to(device), linear.weight, linear.scales
    expected = multiply_twin(*operands)
    terms = values.to(device).float().abs() @ linear.weight.float().abs().t()
    bound = expected.abs() * 2**-8 + terms * operands[1] * operands[3] * 2**-11
    assert ((multiply_scaled(*operands).float() - expected).abs() <= bound).all()
