"""How the decoder architectures differ: the facts that config.json does not say by itself.

All of them are the same decoder (RMSNorm, rotary grouped-query attention, SwiGLU MLP); what
distinguishes one is described here and computed in `engine.models.decoder`. Loads no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class AttentionBias(StrEnum):
    """Say which of q, k, v and the output projection add a bias."""

    NEVER = "no"
    # config.json's `attention_bias`, for all four
    BY_CONFIG = "by config"
    QKV = "q, k, v"


class SlidingWindow(StrEnum):
    """Say which layers see only their window of newest tokens."""

    NEVER = "no"
    ALL_LAYERS = "all layers"
    # config.json's `use_sliding_window`, with `layer_types` or `max_window_layers`
    BY_LAYER = "by layer"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchitectureInfo:
    """Describe an architecture that can be served.

    `name` is Hugging Face's class name, as in config.json's `architectures`; `families` are the
    model families known to use it. `defaults` are the values that its configuration class in
    transformers gives to fields that a config.json leaves out, where they differ from the rest.
    `mlp_bias`: config.json's field of that name is honoured.
    """

    name: str
    model_type: str
    families: tuple[str, ...]
    defaults: Mapping[str, object]
    attention_bias: AttentionBias = AttentionBias.NEVER
    mlp_bias: bool = False
    qk_norm: bool = False
    sliding_window: SlidingWindow = SlidingWindow.NEVER
