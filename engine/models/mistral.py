"""Mistral: every layer sees a sliding window, unless `sliding_window` is null.

Source: transformers' `models/mistral`.
"""

from __future__ import annotations

from engine.models.architecture import ArchitectureInfo, SlidingWindow

MISTRAL = ArchitectureInfo(
    name="MistralForCausalLM",
    model_type="mistral",
    families=("Mistral 7B", "Mistral Nemo"),
    defaults={
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
    },
    sliding_window=SlidingWindow.ALL_LAYERS,
)
