"""Tiny random checkpoints made by transformers, and what it and our models compute from them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM, PreTrainedModel

from engine.cpu.attention import ReferenceAttention
from engine.models.attention import AttentionBatch, KVCacheShape
from engine.models.decoder import Decoder
from engine.models.hf_config import load_model_config
from engine.models.layers import CausalLM
from engine.models.loader import open_weights

CPU = torch.device("cpu")

TINY_LLAMA: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    # Ten times the usual spread: logits far apart, so that equal arithmetic means equal tokens.
    "initializer_range": 0.2,
}


def make_tiny_llama(
    path: Path, *, seed: int = 0, max_shard_size: str = "1GB", **overrides: Any
) -> None:
    """Save a seeded random float32 Llama to `path`; `overrides` change its LlamaConfig."""
    make_tiny(path, LlamaForCausalLM, seed=seed, max_shard_size=max_shard_size, **overrides)


def make_tiny(
    path: Path,
    model_class: type[PreTrainedModel],
    *,
    seed: int = 0,
    max_shard_size: str = "1GB",
    **overrides: Any,
) -> None:
    """Save a seeded random float32 model to `path`; `overrides` change its configuration."""
    torch.manual_seed(seed)
    model = model_class(model_class.config_class(**{**TINY_LLAMA, **overrides}))
    # transformers starts norms at one and biases at zero, which would hide a mistake in their use.
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(torch.rand_like(parameter) + 0.5)
            elif "bias" in name:
                parameter.copy_(torch.randn_like(parameter) * 0.3)
    model.save_pretrained(path, max_shard_size=max_shard_size)


def edit_config(path: Path, *, remove: Sequence[str] = (), **changes: Any) -> None:
    """Change fields of the config.json in the model directory `path`."""
    file = path / "config.json"
    config = json.loads(file.read_text())
    for name in remove:
        config.pop(name, None)
    file.write_text(json.dumps({**config, **changes}))


def rewrite_as_transformers_4(path: Path) -> None:
    """Turn the config.json that transformers 5 wrote into the layout of transformers 4.

    Layers with a window must be those from `max_window_layers` on, as there is no `layer_types`.
    """
    config = json.loads((path / "config.json").read_text())
    rope = dict(config["rope_parameters"])
    theta, rope_type = rope.pop("rope_theta"), rope.pop("rope_type")
    # `rope_type` came with Llama 3.1; what was there before kept the name `type`.
    key = "type" if rope_type == "linear" else "rope_type"
    removed = ["rope_parameters", "dtype", "layer_types"]
    usual_head_dim = config["hidden_size"] // config["num_attention_heads"]
    if config["model_type"] == "llama" and config["head_dim"] == usual_head_dim:
        removed.append("head_dim")
    changes: dict[str, Any] = {}
    if config.get("use_sliding_window") is False:
        # It was saved whether it was used or not.
        changes["sliding_window"] = 4
    edit_config(
        path,
        remove=removed,
        rope_theta=theta,
        rope_scaling=None if rope_type == "default" else {**rope, key: rope_type},
        torch_dtype=config["dtype"],
        **changes,
    )


def load_reference(path: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """Load the checkpoint with transformers, ready to compare with."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
    return model.eval()


@torch.inference_mode()
def reference_logits(model: PreTrainedModel, token_ids: Sequence[int]) -> torch.Tensor:
    """Compute the logits after every token; [num_tokens, vocab_size]."""
    logits: torch.Tensor = model(torch.tensor([list(token_ids)])).logits[0]
    return logits


def reference_greedy(
    model: PreTrainedModel, token_ids: Sequence[int], num_new_tokens: int
) -> list[int]:
    """Continue a prompt greedily, recomputing everything for each token."""
    tokens = list(token_ids)
    for _ in range(num_new_tokens):
        tokens.append(int(reference_logits(model, tokens)[-1].argmax()))
    return tokens[len(token_ids) :]


def load(model_dir: Path, dtype: torch.dtype = torch.float32) -> CausalLM:
    """Load the checkpoint as the engine does, on the CPU."""
    config = load_model_config(model_dir)
    weights = open_weights(model_dir, load_format="auto", dtype=dtype, device=CPU, seed=0)
    return Decoder(config, weights)


def make_attention(model_dir: Path, dtype: torch.dtype = torch.float32) -> ReferenceAttention:
    """Make paged attention for the checkpoint, with 16 blocks of 16 tokens."""
    config = load_model_config(model_dir)
    shape = KVCacheShape(
        num_layers=config.num_layers,
        num_blocks=16,
        block_size=16,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
    )
    return ReferenceAttention(shape, dtype=dtype, device=CPU)


def logits_in_chunks(
    model_dir: Path,
    token_ids: list[int],
    chunks: list[int],
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Compute all logits of one sequence with our model; its blocks lie backwards in memory."""
    model, attention = load(model_dir, dtype), make_attention(model_dir, dtype)
    pieces, start = [], 0
    for n in chunks:
        positions = np.arange(start, start + n)
        attention.plan(
            AttentionBatch(
                num_decodes=0,
                positions=positions,
                query_lens=np.array([n], np.int32),
                context_lens=np.array([start + n], np.int32),
                block_tables=np.arange(16, dtype=np.int32)[::-1][None],
            )
        )
        tokens = torch.tensor(token_ids[start : start + n])
        pieces.append(model.forward(tokens, torch.from_numpy(positions), attention, None))
        start += n
    return torch.cat(pieces)
