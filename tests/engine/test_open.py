"""Which engine a configuration opens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from checkpoints import make_tiny_llama
from engine.config import EngineConfig
from engine.contract import Engine
from engine.cpu.runner import TorchEngine
from engine.demo import MODEL_DIR
from engine.errors import EngineError
from engine.open import open_engine, open_simulated


def open_on(device: str, model_dir: Path) -> Engine:
    return open_engine(
        EngineConfig(model_dir=model_dir, device=device, num_blocks=4, num_threads=1)
    )


def test_without_a_gpu_the_cpu_computes(
    tiny_llama_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`auto` is the CPU where torch sees no GPU, and the engine says so."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for device in ("cpu", "auto"):
        engine = open_on(device, tiny_llama_dir)
        assert isinstance(engine, TorchEngine)
        assert engine.info.device == "cpu"


def test_a_gpu_that_is_asked_for_is_not_replaced(
    tiny_llama_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`cuda` without a GPU is refused in one line, and no CPU computes instead."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(EngineError, match="no CUDA device is there for device 'cuda'"):
        open_on("cuda", tiny_llama_dir)


def test_a_cpu_has_no_units_for_weights_in_8_bits(tiny_llama_dir: Path) -> None:
    """What would be imitated many times slower than bfloat16 is refused, and says what to do."""
    config = EngineConfig(model_dir=tiny_llama_dir, num_blocks=4, weight_dtype="fp8")
    with pytest.raises(EngineError, match=r"needs a GPU.*leave weight_dtype unset"):
        open_engine(config)


def test_a_model_that_computes_no_numbers_is_refused(tmp_path: Path) -> None:
    """Weights that are numbers, and overflow in the first step, end the start in one line."""
    make_tiny_llama(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.norm.weight"].fill_(1e38)
    tensors["lm_head.weight"].fill_(1e38)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(EngineError, match=r"cannot compute one token.*not finite.*fetch its files"):
        open_on("cpu", tmp_path)


def test_a_simulated_engine_has_the_models_shape() -> None:
    """Limits are those of config.json and of the configuration, with blocks for all sequences."""
    config = EngineConfig(model_dir=MODEL_DIR, block_size=16, max_num_seqs=3, max_model_len=40)
    info = open_simulated(config, profile="instant", sleep=lambda _: None).info
    assert info.device == "simulated"
    assert info.max_model_len == 40
    assert info.num_blocks == 3 * 3
    config = EngineConfig(model_dir=MODEL_DIR, num_blocks=5)
    info = open_simulated(config, profile="instant", sleep=lambda _: None).info
    assert (info.num_blocks, info.max_model_len) == (5, 5 * 64)
    assert info.why_shorter is not None
    assert info.eos_token_ids
    assert info.vocab_size > max(info.eos_token_ids)
