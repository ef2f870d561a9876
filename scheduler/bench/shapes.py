"""The shapes of models that the benches measure where no model directory is given.

A shape is a config.json alone: its weights are random. Their values do not change how long a step
takes, only their sizes do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_LLAMA_30M = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 32_000,
    "hidden_size": 384,
    "intermediate_size": 1024,
    "num_hidden_layers": 10,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "head_dim": 64,
    "dtype": "float32",
}

# Qwen3-0.6B's layers with a vocabulary of 65,536: 0.51 billion parameters.
_QWEN3_0_5B = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 65_536,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "dtype": "bfloat16",
}

_COMMON = {
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": None,
}

SHAPES: Mapping[str, Mapping[str, Any]] = {
    "llama-30m": {**_COMMON, **_LLAMA_30M},
    "qwen3-0.5b": {**_COMMON, **_QWEN3_0_5B},
}


def write_config(config: Mapping[str, Any], directory: Path) -> None:
    """Make `directory` a model directory of this shape, without weights."""
    (directory / "config.json").write_text(json.dumps(config, indent=1))
