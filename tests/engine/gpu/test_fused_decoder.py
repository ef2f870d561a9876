"""The decoder with the products of a few rows fused: who takes them, and that no token changes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedModel, Qwen2ForCausalLM

from checkpoints import load_reference, make_tiny, reference_greedy
from engine.config import EngineConfig
from engine.contract import SamplingParams
from engine.gpu.engine import GpuEngine
from engine.kernels.choose import choose_operations
from engine.kernels.operations import MATVEC_ROWS
from plan_driver import PlanDriver

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NUM_NEW_TOKENS = 12
GREEDY = SamplingParams(max_tokens=NUM_NEW_TOKENS, temperature=0.0, ignore_eos=True)
PROMPTS = [[5, 9, 3], list(range(3, 38)), [7], [40, 41, 42, 43], list(range(60, 80))]


@pytest.fixture
def num_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each fused product had, as they come."""
    counted: list[int] = []

    def choose(device: torch.device, **how: bool) -> Any:
        operations: Any = choose_operations(device, **how)

        def matvec(x: Tensor, *arguments: Any, **options: Any) -> Tensor:
            counted.append(len(x))
            product: Tensor = operations.matvec(x, *arguments, **options)
            return product

        every = {name: getattr(operations, name) for name in operations.__all__}
        return SimpleNamespace(**every | {"matvec": matvec})

    monkeypatch.setattr("engine.gpu.engine.choose_operations", choose)
    return counted


def make(model_dir: Path, **overrides: Any) -> GpuEngine:
    settings = {
        "model_dir": model_dir,
        "device": DEVICE,
        "dtype": "float32",
        "block_size": 16,
        "num_blocks": 32,
        "max_num_seqs": 5,
        "max_num_batched_tokens": 64,
        "num_threads": 1,
        "fused_matvec": True,
        **overrides,
    }
    return GpuEngine(EngineConfig(**settings))


@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("model_class", [LlamaForCausalLM, Qwen2ForCausalLM])
def test_greedy_tokens_equal_transformers(
    model_class: type[PreTrainedModel], graphs: bool, num_rows: list[int], tmp_path: Path
) -> None:
    """A few rows, more than that, and few again, with biases and without, draw the same tokens."""
    make_tiny(tmp_path, model_class, eos_token_id=None)
    model = load_reference(tmp_path)
    expected = [reference_greedy(model, prompt, NUM_NEW_TOKENS) for prompt in PROMPTS]
    engine = make(tmp_path, graphs=graphs)
    num_rows.clear()
    driver = PlanDriver(engine, shuffle=True)
    assert driver.run(PROMPTS, GREEDY) == expected
    assert not [n for n in num_rows if n > MATVEC_ROWS]
    for count in (1, 3, 4):
        before = len(num_rows)
        assert driver.run(PROMPTS[:count], GREEDY) == expected[:count]
        # On a GPU its graphs have them already.
        assert len(num_rows) > before or (DEVICE == "cuda" and graphs)


def test_prompts_that_are_scored_may_ask_for_more_logits(
    num_rows: list[int], tmp_path: Path
) -> None:
    """A step of few tokens, each with logits for its own score too, goes the plain way."""
    make_tiny(tmp_path, LlamaForCausalLM, eos_token_id=None)
    scored = SamplingParams(
        max_tokens=NUM_NEW_TOKENS, temperature=0.0, ignore_eos=True, prompt_logprobs=0
    )
    plain = PlanDriver(make(tmp_path, fused_matvec=False)).run(PROMPTS[:3], GREEDY)
    assert not num_rows
    assert PlanDriver(make(tmp_path), chunk=1).run(PROMPTS[:3], scored) == plain
    assert num_rows


def test_eight_bits_go_the_plain_way(num_rows: list[int], tmp_path: Path) -> None:
    """Weights of 8 bits have no fused products, and are no error."""
    make_tiny(tmp_path, LlamaForCausalLM, eos_token_id=None)
    engine = make(tmp_path, weight_dtype="fp8")
    assert len(PlanDriver(engine).run(PROMPTS[:1], GREEDY)[0]) == NUM_NEW_TOKENS
    assert not num_rows
