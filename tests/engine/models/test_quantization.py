"""Linear layers in 8 bits, against float32 and against what they say they do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from checkpoints import make_tiny_llama
from engine.config import EngineConfig
from engine.contract import SamplingParams
from engine.cpu.runner import TorchEngine
from engine.errors import EngineError
from engine.gpu.engine import GpuEngine
from engine.kernels.twins.quantize_rows import FP8
from engine.kernels.twins.quantize_rows import quantize_rows as quantize_rows_twin
from engine.models.hf_config import load_model_config
from engine.models.linear import Linear
from engine.models.load import load_decoder
from engine.models.quantization import (
    Fp8Linear,
    multiply_scaled,
    multiply_twin,
    refuse_fp8_without_units,
)
from plan_driver import PlanDriver

CPU = torch.device("cpu")
GREEDY = SamplingParams(max_tokens=8, temperature=0)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_rows_are_rounded_within_their_own_scale() -> None:
    """A number is off by a sixteenth of itself, or a step of the smallest numbers of its row."""
    x = random(6, 64) * torch.tensor([1e-6, 1e-3, 1.0, 1e3, 1e6, 1e9])[:, None]
    values, scales = quantize_rows_twin(x)
    assert values.dtype == FP8
    assert scales.shape == (6, 1)
    error = (values.float() * scales - x).abs()
    assert (error <= x.abs() / 16 * 1.001 + scales * 2**-10).all()
    # The largest number of a row is the largest there is.
    assert (values.float().abs().amax(dim=1) == 448).all()


def test_rows_of_zeros_and_rows_that_are_not_finite() -> None:
    """Zeros stay zeros; NaN and infinity stay in their row, and make all of its products NaN."""
    x = random(4, 32)
    x[1] = 0
    x[2, 3], x[3, 5] = torch.nan, torch.inf
    values, scales = quantize_rows_twin(x)
    assert scales[1] == 1
    assert not values[1].float().any()
    out = Fp8Linear(Linear(random(32, 16, seed=1)))(x)
    assert out[:2].isfinite().all()
    assert not out[1].any()
    assert out[2:].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_product_is_close_to_the_float32_one(dtype: torch.dtype) -> None:
    """No term of a sum is off by more than an eighth, and sums are off by far less."""
    # Channels, and tokens, of very different sizes.
    plain = (random(256, 96, seed=1) * torch.logspace(-3, 3, 96)).to(dtype)
    x = (random(7, 256, seed=2) * torch.logspace(-2, 2, 7)[:, None]).to(dtype)
    found = Fp8Linear(Linear(plain))(x)
    assert found.dtype == dtype
    terms = x.float().abs() @ plain.float().abs()
    error = (found.float() - x.float() @ plain.float()).abs() / terms
    assert error.max() < 2 / 16 + 1 / 256
    assert error.mean() < 0.005


def test_products_of_torch_are_those_of_the_twin() -> None:
    """What torch multiplies on a GPU, run here on a CPU, differs by bfloat16's rounding alone."""
    linear = Fp8Linear(Linear(random(256, 96, seed=1) * torch.logspace(-3, 3, 96)))
    values, scales = quantize_rows_twin(random(7, 256, seed=2) * 100)
    operands = values, scales, linear.weight, linear.scales
    expected = multiply_twin(*operands)
    bound = 2**-8 * values.float().abs() @ linear.weight.float().abs().t()
    error = (multiply_scaled(*operands).float() - expected).abs()
    assert (error <= 2**-8 * expected.abs() + 1e-5 * bound * scales * linear.scales).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bias_and_residual_are_added_as_they_are(dtype: torch.dtype) -> None:
    """What is added to a product is not rounded to 8 bits."""
    plain, x = random(64, 32, seed=1).to(dtype), random(5, 64, seed=2).to(dtype)
    bias, residual = random(32, seed=3).to(dtype), random(5, 32, seed=4).to(dtype)
    without, linear = Fp8Linear(Linear(plain)), Fp8Linear(Linear(plain, bias))
    torch.testing.assert_close(linear(x), without(x) + bias)
    torch.testing.assert_close(linear.add_to(residual, x), residual + linear(x))


@pytest.mark.parametrize("shape", [(40, 32), (32, 40)])
def test_sizes_that_tensor_cores_do_not_take(shape: tuple[int, int]) -> None:
    """A layer whose sizes are not in multiples of 16 is refused in one line."""
    with pytest.raises(EngineError, match="multiples of 16, not a layer of"):
        Fp8Linear(Linear(torch.zeros(shape)))


def test_head_and_embedding_stay(tmp_path: Path) -> None:
    """A decoder in 8 bits has its head as it was saved, alone among its linear layers."""
    make_tiny_llama(tmp_path)
    config = EngineConfig(model_dir=tmp_path, weight_dtype="fp8")
    decoder = load_decoder(config, load_model_config(tmp_path), torch.float32, CPU)
    assert decoder.linears() == [decoder.head]
    layer = decoder.layers[-1]
    assert all(isinstance(x, Fp8Linear) for x in (layer.qkv, layer.out, layer.gate_up, layer.down))


@pytest.mark.parametrize("kv_dtype", [None, "fp8"])
@pytest.mark.parametrize("weight_dtype", [None, "fp8"])
def test_both_engines_agree(tmp_path: Path, weight_dtype: str | None, kv_dtype: str | None) -> None:
    """The GPU's engine and its oracle give the same tokens, whatever has 8 bits."""
    make_tiny_llama(tmp_path, eos_token_id=None)
    config = EngineConfig(
        model_dir=tmp_path,
        dtype="float32",
        weight_dtype=weight_dtype,
        kv_dtype=kv_dtype,
        block_size=16,
        num_blocks=32,
        max_num_seqs=4,
        num_threads=1,
        native="off",
    )
    prompts = [list(range(3, 3 + n)) for n in (1, 17, 40)]
    engines = TorchEngine(config), GpuEngine(config)
    ours, theirs = (PlanDriver(engine, chunk=7).run(prompts, GREEDY) for engine in engines)
    assert ours == theirs
    for engine in engines:
        engine.close()


def test_what_is_asked_for_must_be_known(tmp_path: Path) -> None:
    """Another name than fp8 is a mistake of the caller's."""
    for name in ("weight_dtype", "kv_dtype"):
        with pytest.raises(ValueError, match=f"{name} must be fp8 or None"):
            EngineConfig(model_dir=tmp_path, **{name: "int4"})  # type: ignore[arg-type]


def test_a_gpu_without_units_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older GPU is refused in one line that names the setting, a newer one is not."""
    device = torch.device("cuda")
    config = EngineConfig(model_dir=tmp_path, kv_dtype="fp8")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    refuse_fp8_without_units(EngineConfig(model_dir=tmp_path), device)
    with pytest.raises(EngineError, match=r"kv_dtype fp8 needs .* this one has 8\.0; leave it"):
        refuse_fp8_without_units(config, device)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    refuse_fp8_without_units(config, device)
