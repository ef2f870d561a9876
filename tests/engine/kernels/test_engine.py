"""The GPU engine over the kernels themselves: what each computes is what the next one expects."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from checkpoints import load_reference, make_tiny_llama, reference_greedy
from engine.config import EngineConfig
from engine.contract import SamplingParams
from engine.gpu.engine import GpuEngine
from engine.kernels.operations import Operations
from plan_driver import PlanDriver

# What the interpreter does with NumPy.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def open_engine(model_dir: Path, monkeypatch: pytest.MonkeyPatch, *, switches: bool) -> GpuEngine:
    monkeypatch.setattr("engine.gpu.engine.choose_operations", _choose_kernels)
    return GpuEngine(
        EngineConfig(
            model_dir=model_dir,
            device=DEVICE,
            dtype="float32",
            block_size=16,
            num_blocks=16,
            max_num_seqs=2,
            max_num_batched_tokens=48,
            num_threads=1,
            dependent_launch=switches,
            fused_matvec=switches,
        )
    )


def _choose_kernels(_: torch.device, *, dependent_launch: bool | None) -> Operations:
    """Choose as on a GPU; where kernels are interpreted, launches that overlap are plain ones."""
    from engine.kernels import dependent_operations, triton_operations

    return dependent_operations if dependent_launch else triton_operations


def test_greedy_tokens_equal_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks, decodes and rows that pad, through every kernel, give the reference's tokens."""
    make_tiny_llama(tmp_path, num_hidden_layers=1, eos_token_id=None)
    model = load_reference(tmp_path)
    prompts = [[5], list(range(3, 38))]
    engine = open_engine(tmp_path, monkeypatch, switches=False)
    params = SamplingParams(max_tokens=3, temperature=0.0)
    expected = [reference_greedy(model, prompt, 3) for prompt in prompts]
    assert PlanDriver(engine, chunk=17).run(prompts, params) == expected
    drawn = SamplingParams(max_tokens=3, temperature=0.7, top_k=9, seed=4, repetition_penalty=1.2)
    assert PlanDriver(engine).run(prompts, drawn) == PlanDriver(engine, chunk=9).run(prompts, drawn)


def test_switches_change_no_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches that overlap and products of a few rows give the reference's tokens too."""
    # Small, for a program of the products has four numbers.
    sizes = {"hidden_size": 32, "intermediate_size": 32, "vocab_size": 64}
    make_tiny_llama(tmp_path, num_hidden_layers=1, eos_token_id=None, **sizes)
    model, prompts = load_reference(tmp_path), [[5], [9, 3, 8]]
    engine = open_engine(tmp_path, monkeypatch, switches=True)
    params = SamplingParams(max_tokens=2, temperature=0.0)
    expected = [reference_greedy(model, prompt, 2) for prompt in prompts]
    assert PlanDriver(engine).run(prompts, params) == expected


@pytest.mark.gpu
@pytest.mark.parametrize("fused_matvec", [False, True])
def test_launches_that_overlap_change_no_bit(fused_matvec: bool, tmp_path: Path) -> None:
    """Kernels that wait for each other compute the same, step after step, for few rows and many."""
    if DEVICE != "cuda" or torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("needs a GPU whose launches can overlap")
    sizes = {"hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 16}
    make_tiny_llama(tmp_path, num_key_value_heads=8, eos_token_id=None, **sizes)
    params = SamplingParams(max_tokens=64, temperature=0.0, logprobs=0)
    found = []
    for dependent_launch in (False, True):
        engine = GpuEngine(
            EngineConfig(
                model_dir=tmp_path,
                device=DEVICE,
                dtype="bfloat16",
                num_blocks=64,
                max_num_seqs=16,
                dependent_launch=dependent_launch,
                fused_matvec=fused_matvec,
            )
        )
        prompts = [[7 * n + 1] * (n + 1) for n in range(16)]
        found.append([PlanDriver(engine).run(prompts[:n], params) for n in (1, 3, 16)])
        engine.close()
    assert found[0] == found[1]
