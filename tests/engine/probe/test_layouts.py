"""The layouts of weights: whatever is chosen computes the same, whatever is missing.

Which candidate wins depends on the machine and is not tested.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.models.linear import Layout, Linear, pack
from engine.probe import layouts

DTYPES = [torch.float32, torch.bfloat16]


def make_linear(dtype: torch.dtype, *, bias: bool) -> Linear:
    torch.manual_seed(4)
    return Linear(torch.randn(64, 96).div(8).to(dtype), torch.randn(96).to(dtype) if bias else None)


def can_pack(dtype: torch.dtype) -> bool:
    try:
        pack(torch.ones(16, 16, dtype=dtype))
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("bias", [False, True])
def test_every_layout_is_the_same_layer(dtype: torch.dtype, layout: Layout, bias: bool) -> None:
    """Outputs agree with a product in float32 in every layout, for one row and for more.

    Where a processor cannot multiply packed weights of a type, that is told, for the probe to hear.
    """
    linear = make_linear(dtype, bias=bias)
    assert linear.plain is not None
    weight = linear.plain.float()
    added = 0 if linear.bias is None else linear.bias.float()
    if layout is not Layout.PLAIN and not can_pack(dtype):
        with pytest.raises(RuntimeError):
            linear.lay_out(layout)
        assert layouts.choose_layout([linear.plain]) is Layout.PLAIN
        return
    linear.lay_out(layout)
    assert (linear.plain is None) == (layout is Layout.PACKED)
    assert (linear.packed is None) == (layout is Layout.PLAIN)
    for rows in (1, 2, 33):
        x, residual = torch.randn(rows, 64).to(dtype), torch.randn(rows, 96).to(dtype)
        twin = x.float() @ weight + added
        # bfloat16 keeps eight bits, and a plain product rounds once before the residual is added.
        tolerance = 1e-4 if dtype is torch.float32 else 0.05
        assert (linear(x).float() - twin).abs().max() < tolerance
        assert (linear.add_to(residual, x).float() - twin - residual).abs().max() < tolerance


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_choice_leaves_the_results_alone(
    dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the probe has laid a model's layers out, they compute what they did before."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    linears = [make_linear(dtype, bias=False) for _ in range(2)]
    x = torch.randn(3, 64).to(dtype)
    before = linears[0](x)
    layouts.lay_out(linears, native=False)
    torch.testing.assert_close(linears[0](x), before, rtol=2**-7, atol=1e-2)


def test_without_the_private_operators_weights_stay_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch lacks the packed product, the probe says plain instead of failing."""

    def missing(weight: torch.Tensor) -> torch.Tensor:
        raise AttributeError("_reorder_linear_weight")

    monkeypatch.setattr(layouts, "pack", missing)
    assert layouts.choose_layout([torch.randn(64, 96)]) is Layout.PLAIN


def test_a_packed_product_that_disagrees_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A private operator that computes something else is worse than none."""
    monkeypatch.setattr(layouts, "apply_packed", lambda x, packed, bias: torch.zeros(2, 96))
    assert layouts.choose_layout([torch.randn(64, 96)]) is Layout.PLAIN
