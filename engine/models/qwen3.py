"""Qwen3 (dense): an RMSNorm on every query and key head, and a head_dim of its own.

Source: transformers' `models/qwen3`.
"""

from __future__ import annotations

from engine.models.architecture import ArchitectureInfo, AttentionBias, SlidingWindow

QWEN3 = ArchitectureInfo(
    name="Qwen3ForCausalLM",
    model_type="qwen3",
    families=("Qwen3",),
    defaults={
        "head_dim": 128,
        "max_position_embeddings": 32768,
        "num_key_value_heads": 32,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
    attention_bias=AttentionBias.BY_CONFIG,
    qk_norm=True,
    sliding_window=SlidingWindow.BY_LAYER,
)
