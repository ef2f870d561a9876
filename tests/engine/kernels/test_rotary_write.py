"""The fused norm, rotation and cache write: the kernel, its twin, and the CPU engine's own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.cpu.attention import ReferenceAttention
from engine.kernels import rotary_write
from engine.kernels.operations import StepInputs
from engine.kernels.twins import rotary_write as twin
from engine.models.attention import AttentionBatch, KVCacheShape
from engine.models.layers import rms_norm_heads
from engine.models.rope_config import RopeConfig
from engine.models.rotary import RotaryTable, rotate

EPS = 1e-6
BLOCK_SIZE = 4
NUM_BLOCKS = 12
NUM_SLOTS = 5
POISON = 7.0

Write = Callable[..., Tensor]
WRITES = [
    pytest.param(rotary_write.rotate_and_write, id="kernel"),
    pytest.param(twin.rotate_and_write, id="twin"),
]


class Step:
    """Three rows: one decodes, one adds a chunk over a block's end, one pads; two tokens pad."""

    def __init__(
        self,
        device: torch.device,
        *,
        head_dim: int = 64,
        num_heads: int = 4,
        num_kv_heads: int = 2,
        has_norm: bool = True,
        dtype: torch.dtype = torch.float32,
        cache_dtype: torch.dtype | None = None,
    ) -> None:
        generator = torch.Generator().manual_seed(head_dim)
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.query_lens, self.context_lens = [1, 3], [6, 9]
        tables = torch.randperm(NUM_BLOCKS, generator=generator).view(-1, 3)
        block_tables = torch.full((NUM_SLOTS + 1, 4), 1 << 30)
        block_tables[3, :3], block_tables[1, :3] = tables[0], tables[1]
        self.tables = tables[:2]
        qkv = torch.randn(6, num_heads + 2 * num_kv_heads, head_dim, generator=generator)
        qkv[4:] = torch.nan
        norm = 1 + torch.randn(num_heads + num_kv_heads, head_dim, generator=generator) / 8
        rope = RopeConfig(theta=10_000.0)
        self.table = RotaryTable(
            rope, head_dim=head_dim, num_positions=16, dtype=dtype, device=device
        )
        self.qkv = qkv.to(device, dtype)
        self.qk_norm = norm.to(device, dtype) if has_norm else None
        places = (NUM_BLOCKS * BLOCK_SIZE, num_kv_heads, head_dim)
        self.k_cache = torch.full(places, POISON, device=device).to(cache_dtype or dtype)
        self.v_cache = self.k_cache.clone()

        def ints(values: object) -> Tensor:
            return torch.as_tensor(values, dtype=torch.int32).to(device)

        self.inputs = StepInputs(
            slots=ints([3, 1, NUM_SLOTS]),
            query_starts=ints([0, 1, 4, 4]),
            context_lens=ints([6, 9, 0]),
            token_rows=ints([0, 1, 1, 1, -1, -1]),
            positions=ints([5, 6, 7, 8, 0, 0]),
            tiles=None,
            piece_rows=ints([0]),
            piece_starts=ints([0, 1, 1, 1]),
            block_tables=ints(block_tables),
            block_columns=ints([]),
            new_blocks=ints([]),
            tokens=ints([]),
        )

    def run(self, write: Write) -> tuple[Tensor, Tensor, Tensor]:
        """Give the queries of tokens that are there, and the caches, as float32."""
        k_cache, v_cache = self.k_cache.clone(), self.v_cache.clone()
        q = write(
            self.qkv.clone(),
            self.qk_norm,
            EPS,
            self.table.cos,
            self.table.sin,
            self.inputs,
            k_cache,
            v_cache,
            block_size=BLOCK_SIZE,
        )
        return q[:4].float(), k_cache.float(), v_cache.float()

    def named(self) -> list[int]:
        """Where the tokens go."""
        steps = [(0, 5), (1, 6), (1, 7), (1, 8)]
        return [
            int(self.tables[row, position // BLOCK_SIZE]) * BLOCK_SIZE + position % BLOCK_SIZE
            for row, position in steps
        ]


def same(write: Write, other: Write, step: Step, tolerance: float) -> None:
    for actual, wanted in zip(step.run(write), step.run(other), strict=True):
        torch.testing.assert_close(actual, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("head_dim", "num_heads", "num_kv_heads", "has_norm"),
    [(64, 4, 2, True), (96, 3, 3, False), (128, 8, 1, True), (128, 2, 2, False)],
)
def test_kernel_does_what_its_twin_does(
    head_dim: int, num_heads: int, num_kv_heads: int, has_norm: bool, device: torch.device
) -> None:
    """Heads of every width and number are normed, rotated and stored alike."""
    step = Step(
        device,
        head_dim=head_dim,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        has_norm=has_norm,
    )
    same(rotary_write.rotate_and_write, twin.rotate_and_write, step, 1e-5)


@pytest.mark.parametrize("has_norm", [False, True])
def test_twin_does_what_the_cpu_engine_does(has_norm: bool) -> None:
    """Queries and the cache are what the model's layers and the reference backend make them."""
    device = torch.device("cpu")
    step = Step(device, has_norm=has_norm)
    shape = KVCacheShape(
        num_layers=1,
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK_SIZE,
        num_heads=step.num_heads,
        num_kv_heads=step.num_kv_heads,
        head_dim=64,
    )
    reference = ReferenceAttention(shape, dtype=torch.float32, device=device)
    reference._k_cache[0].fill_(POISON)
    reference._v_cache[0].fill_(POISON)
    reference.plan(
        AttentionBatch(
            num_decodes=1,
            positions=np.array([5, 6, 7, 8]),
            query_lens=np.array(step.query_lens, np.int32),
            context_lens=np.array(step.context_lens, np.int32),
            block_tables=step.tables.numpy().astype(np.int32),
        )
    )
    heads, v = step.qkv[:4].split([step.num_heads + step.num_kv_heads, step.num_kv_heads], dim=1)
    if step.qk_norm is not None:
        heads = rms_norm_heads(heads, step.qk_norm, EPS)
    heads = rotate(heads, *step.table.at(step.inputs.positions[:4]))
    reference.write_kv(0, heads[:, step.num_heads :], v)
    q, k_cache, v_cache = step.run(twin.rotate_and_write)
    torch.testing.assert_close(q, heads[:, : step.num_heads], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(k_cache, reference._k_cache[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(v_cache, reference._v_cache[0], rtol=0, atol=0)


@pytest.mark.parametrize("write", WRITES)
def test_padding_reaches_nothing(write: Write, device: torch.device) -> None:
    """NaN in tokens that pad stays out of the cache, and places not named stay as they were."""
    step = Step(device)
    named = step.named()
    for cache in step.run(write)[1:]:
        assert cache.isfinite().all()
        assert (cache[named] != POISON).all()
        others = torch.ones(len(cache), dtype=torch.bool, device=device)
        others[named] = False
        assert (cache[others] == POISON).all()


@pytest.mark.parametrize("write", WRITES)
def test_a_step_of_padding_alone_changes_nothing(write: Write, device: torch.device) -> None:
    """Where every token pads, the cache stays as it was."""
    step = Step(device)
    step.inputs.token_rows.fill_(-1)
    step.inputs.positions.fill_(0)
    for cache in step.run(write)[1:]:
        assert (cache == POISON).all()


@pytest.mark.parametrize("write", WRITES)
def test_eight_bit_caches_end_at_their_largest(write: Write, device: torch.device) -> None:
    """Values beyond what 8-bit floats hold are clamped, and never turn into NaN."""
    step = Step(device, has_norm=False, cache_dtype=torch.float8_e4m3fn)
    values = step.qkv[:4, step.num_heads + step.num_kv_heads :]
    values.copy_(torch.tensor([1e6, -1e6, 448.0, -1.5]).repeat(16).to(device))
    k_cache, v_cache = step.run(write)[1:]
    assert k_cache.isfinite().all()
    wanted = torch.tensor([448.0, -448.0, 448.0, -1.5]).repeat(16).to(device)
    assert (v_cache[step.named()] == wanted).all()


def test_nan_stays_nan_in_eight_bits(device: torch.device) -> None:
    """A row that has failed has no finite values in the cache."""
    assert _values_of_a_failed_row(twin.rotate_and_write, device).isnan().all()


@pytest.mark.gpu
def test_nan_stays_nan_in_eight_bits_of_a_kernel(device: torch.device) -> None:
    """Nor has it where the kernel stores them."""
    if device.type != "cuda":
        pytest.skip("the interpreter's 8-bit floats have no NaN")
    assert _values_of_a_failed_row(rotary_write.rotate_and_write, device).isnan().all()


def _values_of_a_failed_row(write: Write, device: torch.device) -> torch.Tensor:
    step = Step(device, has_norm=False, cache_dtype=torch.float8_e4m3fn)
    step.qkv[:4, step.num_heads + step.num_kv_heads :] = torch.nan
    return step.run(write)[2][step.named()]


@pytest.mark.gpu
@pytest.mark.parametrize("cache_dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_half_precision_is_rounded_once(cache_dtype: torch.dtype, device: torch.device) -> None:
    """In bfloat16 the kernel differs from its twin by a rounding at most."""
    if device.type != "cuda":
        pytest.skip("the interpreter has no bfloat16")
    step = Step(device, head_dim=128, dtype=torch.bfloat16, cache_dtype=cache_dtype)
    rounding = 2**-7 if cache_dtype == torch.bfloat16 else 2**-3
    same(rotary_write.rotate_and_write, twin.rotate_and_write, step, rounding)
