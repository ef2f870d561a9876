"""The compiled operators against their twins in torch, in both element types."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.attention.backend import AttentionBatch, KVCacheShape
from engine.attention.reference import ReferenceAttention
from engine.models.layers import rms_norm, silu_mul
from engine.native import library
from engine.native.attention import NativeAttention

DTYPES = [torch.float32, torch.bfloat16]
# One unit in the last place of bfloat16, and a few of float32.
TOLERANCES = {torch.float32: (1e-5, 1e-6), torch.bfloat16: (2**-7, 1e-6)}


def close(ours: torch.Tensor, twin: torch.Tensor) -> None:
    rtol, atol = TOLERANCES[ours.dtype]
    torch.testing.assert_close(ours, twin, rtol=rtol, atol=atol)


def absent(native_library: bool) -> bool:
    """Tell, and check, that there is nothing compiled to test here."""
    if not native_library:
        assert not library.load()
    return not native_library


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [16, 40, 64, 1000])
def test_rms_norm_equals_its_twin(native_library: bool, dtype: torch.dtype, size: int) -> None:
    """Rows of any size are normed and weighted as torch does it in float32."""
    if absent(native_library):
        return
    x, weight = torch.randn(5, size).to(dtype) * 30, torch.rand(size).to(dtype)
    twin = rms_norm(x.float(), weight.float(), 1e-5).to(dtype)
    close(torch.ops.sluice.rms_norm(x, weight, 1e-5), twin)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [16, 40, 96])
def test_silu_mul_equals_its_twin(native_library: bool, dtype: torch.dtype, size: int) -> None:
    """The gate is SiLU, also where the exponential is far out of range."""
    if absent(native_library):
        return
    gate_up = torch.randn(5, 2 * size) * 4
    gate_up[0, :8] = torch.tensor([-1e4, -200.0, -90.0, -20.0, 20.0, 90.0, 200.0, 1e4])
    gate_up = gate_up.to(dtype)
    close(torch.ops.sluice.silu_mul(gate_up), silu_mul(gate_up.float()).to(dtype))


def test_a_nan_comes_through(native_library: bool) -> None:
    """A NaN in a row reaches that row's output in every element type, and no other row's."""
    if absent(native_library):
        return
    for dtype in DTYPES:
        x = torch.ones(3, 64, dtype=dtype)
        x[1, 5] = float("nan")
        normed = torch.ops.sluice.rms_norm(x, x[0], 1e-5)
        gated = torch.ops.sluice.silu_mul(x)
        assert normed.isnan().any(dim=-1).tolist() == [False, True, False]
        assert gated.isnan().any(dim=-1).tolist() == [False, True, False]


@pytest.mark.parametrize("head_dim", [16, 64, 80, 128])
@pytest.mark.parametrize("window", [None, 21])
def test_attention_in_bfloat16_equals_torch(
    native_library: bool, head_dim: int, window: int | None
) -> None:
    """Over the same bfloat16 cache both backends give the same, up to rounding."""
    if absent(native_library):
        return
    shape = KVCacheShape(
        num_layers=1, num_blocks=8, block_size=32, num_heads=6, num_kv_heads=2, head_dim=head_dim
    )
    batch = AttentionBatch(
        num_decodes=0,
        positions=np.concatenate([np.arange(70), np.arange(3)]),
        query_lens=np.array([70, 3], np.int32),
        context_lens=np.array([70, 3], np.int32),
        block_tables=np.array([[5, 2, 7], [0, 0, 0]], np.int32),
    )
    torch.manual_seed(1)
    q, k, v = (torch.randn(73, heads, head_dim).bfloat16() for heads in (6, 2, 2))
    outs = []
    for backend in (
        NativeAttention(shape, dtype=torch.bfloat16),
        ReferenceAttention(shape, dtype=torch.bfloat16, device=torch.device("cpu")),
    ):
        backend.plan(batch)
        backend.write_kv(0, k, v)
        outs.append(backend.forward(0, q, window=window))
    torch.testing.assert_close(*outs, rtol=2**-7, atol=1e-3)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("num_inputs", "num_outputs"), [(64, 96), (32, 32), (70, 48), (512, 208)])
def test_few_rows_equal_a_plain_product(
    native_library: bool, dtype: torch.dtype, num_inputs: int, num_outputs: int
) -> None:
    """Any number of rows up to the limit gives the product, with bias and residual or without."""
    if absent(native_library):
        return
    torch.manual_seed(2)
    weight = torch.randn(num_inputs, num_outputs).to(dtype)
    limit = torch.ops.sluice.max_few_rows(weight)
    # A processor without dot products of bfloat16 leaves that type to oneDNN.
    assert limit >= 2 or (limit == 0 and dtype is torch.bfloat16)
    if not limit:
        return
    panels = torch.ops.sluice.few_rows_weight(weight)
    bias = torch.randn(num_outputs).to(dtype)
    for rows in {1, 2, *range(3, limit + 1, 5), limit}:
        x, residual = (torch.randn(rows, n).to(dtype) for n in (num_inputs, num_outputs))
        product = x.float() @ weight.float()
        for addends in ((None, None), (bias, None), (None, residual), (bias, residual)):
            twin = product + sum(a.float() for a in addends if a is not None)
            ours = torch.ops.sluice.few_rows_linear(x, panels, *addends).float()
            tolerance = 1e-3 if dtype is torch.float32 else 2**-7
            torch.testing.assert_close(ours, twin, rtol=tolerance, atol=tolerance)


def test_tiles_leave_onednn_undisturbed(native_library: bool) -> None:
    """Products by matrix tiles between products of oneDNN change neither."""
    if absent(native_library):
        return
    torch.manual_seed(3)
    x, weight = torch.randn(24, 256).bfloat16(), torch.randn(256, 128).bfloat16()
    if torch.ops.sluice.max_few_rows(weight) < 24:
        return
    panels = torch.ops.sluice.few_rows_weight(weight)
    wide = torch.randn(300, 256).bfloat16()
    expected = wide @ weight, torch.ops.sluice.few_rows_linear(x, panels, None, None)
    for rows in (24, 3, 16):
        torch.ops.sluice.few_rows_linear(x[:rows], panels, None, None)
        assert torch.equal(wide @ weight, expected[0])
        assert torch.equal(torch.ops.sluice.few_rows_linear(x, panels, None, None), expected[1])
