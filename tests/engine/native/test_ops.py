"""The compiled operators against their twins in torch, in both element types."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.cpu.attention import ReferenceAttention
from engine.models.attention import AttentionBatch, KVCacheShape
from engine.models.layers import rms_norm, rms_norm_heads, silu_mul
from engine.models.rotary import rotate
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
    """Over bfloat16 values the result is that of torch in float32, up to rounding."""
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
    ours = NativeAttention(shape, dtype=torch.bfloat16)
    twin = ReferenceAttention(shape, dtype=torch.float32, device=torch.device("cpu"))
    for backend in (ours, twin):
        backend.plan(batch)
    ours.write_kv(0, k, v)
    twin.write_kv(0, k.float(), v.float())
    attended = ours.forward(0, q, window=window).float()
    expected = twin.forward(0, q.float(), window=window)
    torch.testing.assert_close(attended, expected, rtol=2**-7, atol=1e-3)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("num_inputs", "num_outputs"), [(64, 96), (32, 32), (70, 48), (512, 208), (34, 16)]
)
def test_few_rows_equal_a_plain_product(
    native_library: bool, dtype: torch.dtype, num_inputs: int, num_outputs: int
) -> None:
    """Any number of rows gives the product, with bias and residual or without."""
    if absent(native_library):
        return
    torch.manual_seed(2)
    weight = torch.randn(num_inputs, num_outputs).to(dtype)
    if not torch.ops.sluice.has_few_rows(weight):
        # A processor without dot products of bfloat16 leaves that type to oneDNN.
        assert dtype is torch.bfloat16
        return
    panels = torch.ops.sluice.few_rows_weight(weight)
    bias = torch.randn(num_outputs).to(dtype)
    for rows in (*range(1, 35), 64, 127, 128, 129, 300):
        x, residual = (torch.randn(rows, n).to(dtype) for n in (num_inputs, num_outputs))
        product = x.float() @ weight.float()
        for addends in ((None, None), (bias, None), (None, residual), (bias, residual)):
            twin = product + sum(a.float() for a in addends if a is not None)
            ours = torch.ops.sluice.few_rows_linear(x, panels, *addends).float()
            tolerance = 1e-3 if dtype is torch.float32 else 2**-7
            torch.testing.assert_close(ours, twin, rtol=tolerance, atol=tolerance)


def test_few_rows_of_odd_shapes_are_refused(native_library: bool) -> None:
    """A weight that panels cannot hold is said to be one, and laying it out is refused."""
    if absent(native_library):
        return
    for shape in ((64, 40), (33, 32)):
        assert not torch.ops.sluice.has_few_rows(torch.zeros(shape))
        with pytest.raises(RuntimeError, match="has_few_rows"):
            torch.ops.sluice.few_rows_weight(torch.zeros(shape))


def test_panels_outlive_those_beside_them(native_library: bool) -> None:
    """Weights share pieces of memory, and each stays whole when others are dropped or made."""
    if absent(native_library):
        return
    x = torch.ones(1, 64)
    kept = [torch.ops.sluice.few_rows_weight(torch.full((64, 32), float(i))) for i in range(8)]
    del kept[::2]
    kept += [torch.ops.sluice.few_rows_weight(torch.full((64, 32), float(i))) for i in (8, 9)]
    sums = [torch.ops.sluice.few_rows_linear(x, panels, None, None)[0, 31] for panels in kept]
    assert [value.item() for value in sums] == [64.0 * i for i in (1, 3, 5, 7, 8, 9)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("head_dim", "num_heads", "num_kv_heads"), [(64, 6, 2), (48, 4, 4)])
@pytest.mark.parametrize("normed", [False, True])
def test_norm_rope_and_cache_write_equal_their_twins(
    native_library: bool,
    dtype: torch.dtype,
    head_dim: int,
    num_heads: int,
    num_kv_heads: int,
    normed: bool,
) -> None:
    """The fused operator turns queries and keys as the torch path does, and caches what it did."""
    if absent(native_library):
        return
    torch.manual_seed(4)
    shape = KVCacheShape(
        num_layers=1,
        num_blocks=6,
        block_size=32,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
    )
    # A slice that crosses a block, and a decode in another sequence.
    positions = np.concatenate([np.arange(20, 45), [70]])
    batch = AttentionBatch(
        num_decodes=0,
        positions=positions,
        query_lens=np.array([25, 1], np.int32),
        context_lens=np.array([45, 71], np.int32),
        block_tables=np.array([[5, 2, 0], [1, 4, 3]], np.int32),
    )
    angles = torch.rand(128, head_dim // 2) * 6
    cos, sin = angles.cos().repeat(1, 2).to(dtype), angles.sin().repeat(1, 2)
    sin[:, : head_dim // 2] *= -1
    sin = sin.to(dtype)
    qkv = torch.randn(26, (num_heads + 2 * num_kv_heads) * head_dim).to(dtype)
    weights = torch.rand(num_heads + num_kv_heads, head_dim).to(dtype)
    qk_norm = weights if normed else torch.empty(0, dtype=dtype)

    heads = qkv.view(26, -1, head_dim)
    qk, v = heads[:, : num_heads + num_kv_heads], heads[:, num_heads + num_kv_heads :]
    if normed:
        qk = rms_norm_heads(qk.float(), weights.float(), 1e-5).to(dtype)
    at = torch.from_numpy(positions)
    qk = rotate(qk.float(), cos[at].float()[:, None], sin[at].float()[:, None]).to(dtype)
    twin = NativeAttention(shape, dtype=dtype)
    ours = NativeAttention(shape, dtype=dtype)
    for backend in (twin, ours):
        backend.k_cache.zero_()
        backend.v_cache.zero_()
        backend.plan(batch)
    twin.write_kv(0, qk[:, num_heads:].contiguous(), v.contiguous())

    torch.ops.sluice.rotate_and_write(
        qkv,
        qk_norm,
        1e-5,
        cos,
        sin,
        ours.k_cache[0],
        ours.v_cache[0],
        ours.batch.query_lens,
        ours.batch.context_lens,
        ours.batch.block_tables,
    )
    turned = qkv.view(26, -1, head_dim)[:, : num_heads + num_kv_heads]
    rtol, atol = (1e-5, 1e-5) if dtype is torch.float32 else (2**-6, 2**-6)
    torch.testing.assert_close(turned, qk, rtol=rtol, atol=atol)
    torch.testing.assert_close(ours.k_cache, twin.k_cache, rtol=rtol, atol=atol)
    assert torch.equal(ours.v_cache, twin.v_cache)


def test_tiles_leave_onednn_undisturbed(native_library: bool) -> None:
    """Products by matrix tiles between products of oneDNN change neither."""
    if absent(native_library):
        return
    torch.manual_seed(3)
    x, weight = torch.randn(24, 256).bfloat16(), torch.randn(256, 128).bfloat16()
    if not torch.ops.sluice.has_few_rows(weight):
        return
    panels = torch.ops.sluice.few_rows_weight(weight)
    wide = torch.randn(300, 256).bfloat16()
    expected = wide @ weight, torch.ops.sluice.few_rows_linear(x, panels, None, None)
    for rows in (24, 3, 16):
        torch.ops.sluice.few_rows_linear(x[:rows], panels, None, None)
        assert torch.equal(wide @ weight, expected[0])
        assert torch.equal(torch.ops.sluice.few_rows_linear(x, panels, None, None), expected[1])


@pytest.mark.parametrize("size", [5, 16, 100, 4096])
def test_the_largest_logit_is_the_first_of_its_size(native_library: bool, size: int) -> None:
    """Each row gives the index that torch finds in it, the first where several tie."""
    if absent(native_library):
        return
    torch.manual_seed(5)
    # Few values make many ties, at any place.
    logits = torch.randint(-3, 3, (60, size)).float()
    logits[:20] = torch.randn(20, size)
    ids, finite = torch.ops.sluice.find_largest(logits)
    assert ids.tolist() == logits.numpy().argmax(axis=-1).tolist()
    assert finite.all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_the_largest_logit_of_a_row_that_is_not_finite(native_library: bool, bad: float) -> None:
    """A value that is not finite is reported wherever it is, and leaves the other rows alone."""
    if absent(native_library):
        return
    for at in (0, 70, 129):
        logits = torch.arange(130.0).repeat(3, 1)
        logits[1, at] = bad
        ids, finite = torch.ops.sluice.find_largest(logits)
        assert finite.tolist() == [True, False, True]
        assert (ids[0], ids[2]) == (129, 129)
        assert 0 <= ids[1] < 130
