"""Tiny random Llama checkpoints, made by transformers, for tests of everything that loads one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

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
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**{**TINY_LLAMA, **overrides}))
    # transformers initialises norms to ones, which would hide a mistake in their use.
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(torch.rand_like(parameter) + 0.5)
    model.save_pretrained(path, max_shard_size=max_shard_size)


def edit_config(path: Path, *, remove: Sequence[str] = (), **changes: Any) -> None:
    """Change fields of the config.json in the model directory `path`."""
    file = path / "config.json"
    config = json.loads(file.read_text())
    for name in remove:
        config.pop(name, None)
    file.write_text(json.dumps({**config, **changes}))


def rewrite_as_transformers_4(path: Path) -> None:
    """Turn the config.json that transformers 5 wrote into the layout of transformers 4."""
    config = json.loads((path / "config.json").read_text())
    edit_config(
        path,
        remove=("rope_parameters", "dtype", "head_dim"),
        rope_theta=config["rope_parameters"]["rope_theta"],
        rope_scaling=None,
        torch_dtype=config["dtype"],
    )


def load_reference(path: Path) -> LlamaForCausalLM:
    """Load the checkpoint with transformers, in float32, ready to compare with."""
    model: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(path, dtype=torch.float32)
    return model.eval()


@torch.inference_mode()
def reference_logits(model: LlamaForCausalLM, token_ids: Sequence[int]) -> torch.Tensor:
    """Compute the logits after every token; [num_tokens, vocab_size]."""
    logits: torch.Tensor = model(torch.tensor([list(token_ids)])).logits[0]
    return logits


def reference_greedy(
    model: LlamaForCausalLM, token_ids: Sequence[int], num_new_tokens: int
) -> list[int]:
    """Continue a prompt greedily, recomputing everything for each token."""
    tokens = list(token_ids)
    for _ in range(num_new_tokens):
        tokens.append(int(reference_logits(model, tokens)[-1].argmax()))
    return tokens[len(token_ids) :]
