"""Llama: the plain decoder; biases where config.json asks for them.

Source: transformers' `models/llama`.
"""

from __future__ import annotations

from engine.models.architecture import ArchitectureInfo, AttentionBias

LLAMA = ArchitectureInfo(
    name="LlamaForCausalLM",
    model_type="llama",
    families=("Llama 2", "Llama 3", "Llama 3.1", "Llama 3.2", "Llama 3.3"),
    defaults={"max_position_embeddings": 2048},
    attention_bias=AttentionBias.BY_CONFIG,
    mlp_bias=True,
)
