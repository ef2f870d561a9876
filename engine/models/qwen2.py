"""Qwen2 and Qwen2.5: a bias on q, k and v; a sliding window on upper layers where asked for.

Source: transformers' `models/qwen2`.
"""

from __future__ import annotations

from engine.models.architecture import ArchitectureInfo, AttentionBias, SlidingWindow

QWEN2 = ArchitectureInfo(
    name="Qwen2ForCausalLM",
    model_type="qwen2",
    families=("Qwen2", "Qwen2.5"),
    defaults={
        "max_position_embeddings": 32768,
        "num_key_value_heads": 32,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
    attention_bias=AttentionBias.QKV,
    sliding_window=SlidingWindow.BY_LAYER,
)
