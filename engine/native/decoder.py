"""The decoder's layer loop in one compiled call, around the same weights.

Between two matrix products a layer has only small operations; called one by one from Python they
cost a third of a decode step. The products stay torch's and oneDNN's, over the layout that the
probe of `engine.models.linear` chose. Its twin is `engine.models.decoder.Decoder.forward`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.models.attention import AttentionBackend
from engine.models.decoder import Decoder, Layer
from engine.models.hf_config import ModelConfig
from engine.models.linear import Linear
from engine.native.attention import LANES, NativeAttention


class NativeDecoder:
    """Implement `CausalLM` over a loaded `Decoder` and a `NativeAttention`."""

    def __init__(self, model: Decoder) -> None:
        config = model.config
        absent = torch.empty(0, dtype=model.embedding.dtype)
        tensors = [tensor for layer in model.layers for tensor in _tensors(layer, absent)]
        # A compiled class: torch gives it no type.
        self._compiled = torch.classes.sluice.Decoder(
            config.num_heads,
            config.rms_norm_eps,
            model.embedding,
            tensors,
            [layer.window or 0 for layer in model.layers],
            model.norm,
            list(_linear(model.head, absent)),
            model.rotary.cos,
            model.rotary.sin,
            [linear.max_few_rows for linear in model.linears()],
        )

    @staticmethod
    def supports(config: ModelConfig, dtype: torch.dtype) -> bool:
        """Tell whether the operators can compute such a model."""
        return dtype in (torch.float32, torch.bfloat16) and config.head_dim % LANES == 0

    @torch.inference_mode()
    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        attention: AttentionBackend,
        logit_rows: Tensor | None,
    ) -> Tensor:
        assert isinstance(attention, NativeAttention)
        batch = attention.batch
        logits: Tensor = self._compiled.forward(
            token_ids,
            logit_rows,
            attention.k_cache,
            attention.v_cache,
            batch.query_lens,
            batch.context_lens,
            batch.block_tables,
        )
        return logits


def _tensors(layer: Layer, absent: Tensor) -> list[Tensor]:
    """List a layer's weights in the order of the compiled loop."""
    return [
        layer.input_norm,
        *_linear(layer.qkv, absent),
        absent if layer.qk_norm is None else layer.qk_norm,
        *_linear(layer.out, absent),
        layer.mlp_norm,
        *_linear(layer.gate_up, absent),
        *_linear(layer.down, absent),
    ]


def _linear(linear: Linear, absent: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the layouts of a linear layer, plain, packed and for few rows, and its bias."""
    return (
        absent if linear.plain is None else linear.plain,
        absent if linear.packed is None else linear.packed,
        absent if linear.few_rows is None else linear.few_rows,
        absent if linear.bias is None else linear.bias,
    )
