"""How much of a GPU's memory the KV cache may have."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from checkpoints import make_tiny_llama
from engine.config import EngineConfig
from engine.gpu.kv_cache import free_bytes, step_bytes
from engine.models.hf_config import load_model_config
from engine.models.load import load_decoder

GIB = 1 << 30


def test_a_share_of_the_memory_holds_weights_steps_and_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 0.5 of 100 GiB 10 are weights; without a share what is free is taken, less a reserve."""
    make_tiny_llama(tmp_path)
    device = torch.device("cpu")
    config = EngineConfig(model_dir=tmp_path)
    decoder = load_decoder(config, load_model_config(tmp_path), torch.float32, device)
    step = step_bytes(decoder, config.step_tokens, config.max_num_seqs)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (80 * GIB, 100 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 10 * GIB)

    def cache_bytes(share: float | None) -> int:
        chosen = EngineConfig(model_dir=tmp_path, gpu_memory_utilization=share)
        return free_bytes(chosen, decoder, device)

    assert cache_bytes(None) == 75 * GIB - step
    assert cache_bytes(0.5) == 40 * GIB - step
    # Another process has the rest: a share is no promise of more than is free.
    assert cache_bytes(1.0) == 75 * GIB - step
    assert cache_bytes(0.01) == 0

    def shared_bytes(others_bytes: int) -> int:
        chosen = EngineConfig(model_dir=tmp_path, kv_share=0.5)
        return free_bytes(chosen, decoder, device, others_bytes=others_bytes)

    # Of several engines each has its share of the card, whoever was loaded first.
    assert shared_bytes(0) == 40 * GIB - step
    assert shared_bytes(10 * GIB) == 50 * GIB - step
