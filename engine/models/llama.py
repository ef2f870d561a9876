"""Llama: rotary grouped-query attention and a SwiGLU MLP, both behind RMSNorm.

Source: transformers' `models/llama/modeling_llama.py` for names and order of operations.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.attention.backend import AttentionBackend
from engine.models.hf_config import ModelConfig
from engine.models.layers import RotaryTable, load_linear, rms_norm, rotate, silu_mul
from engine.models.loader import WeightSource


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    input_norm: Tensor  # [hidden_size]
    qkv: Tensor  # [hidden_size, (num_heads + 2 * num_kv_heads) * head_dim]
    out: Tensor  # [num_heads * head_dim, hidden_size]
    mlp_norm: Tensor  # [hidden_size]
    gate_up: Tensor  # [hidden_size, 2 * intermediate_size]
    down: Tensor  # [intermediate_size, hidden_size]


class LlamaForCausalLM:
    """Implement `CausalLM` for Llama checkpoints."""

    def __init__(self, config: ModelConfig, weights: WeightSource) -> None:
        self._config = config
        hidden, vocab = config.hidden_size, config.vocab_size
        self._embedding = weights.take("model.embed_tokens.weight", vocab, hidden)
        self._layers = [_load_layer(config, weights, i) for i in range(config.num_layers)]
        self._norm = weights.take("model.norm.weight", hidden)
        if config.tie_word_embeddings:
            self._head = self._embedding.t()
        else:
            self._head = load_linear(weights, [("lm_head.weight", vocab)], hidden)
        self._rotary = RotaryTable(
            head_dim=config.head_dim,
            theta=config.rope_theta,
            num_positions=config.max_position_embeddings,
            dtype=self._embedding.dtype,
            device=self._embedding.device,
        )

    @torch.inference_mode()
    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        attention: AttentionBackend,
        logit_rows: Tensor | None,
    ) -> Tensor:
        x = F.embedding(token_ids, self._embedding)  # [num_tokens, hidden_size]
        cos, sin = self._rotary.at(positions)
        for index, layer in enumerate(self._layers):
            x = self._attend(index, layer, x, cos, sin, attention)
            gated = silu_mul(rms_norm(x, layer.mlp_norm, self._config.rms_norm_eps) @ layer.gate_up)
            x = torch.addmm(x, gated, layer.down)
        if logit_rows is not None:
            x = x.index_select(0, logit_rows)
        x = rms_norm(x, self._norm, self._config.rms_norm_eps)
        return (x @ self._head).float()

    def _attend(
        self,
        index: int,
        layer: _Layer,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        attention: AttentionBackend,
    ) -> Tensor:
        config = self._config
        qkv = rms_norm(x, layer.input_norm, config.rms_norm_eps) @ layer.qkv
        # [num_tokens, num_heads + 2 * num_kv_heads, head_dim]
        qkv = qkv.view(x.shape[0], -1, config.head_dim)
        num_rotated = config.num_heads + config.num_kv_heads
        qk = rotate(qkv[:, :num_rotated], cos, sin)
        attention.write_kv(index, qk[:, config.num_heads :], qkv[:, num_rotated:])
        attended = attention.forward(index, qk[:, : config.num_heads])
        return torch.addmm(x, attended, layer.out)


def _load_layer(config: ModelConfig, weights: WeightSource, index: int) -> _Layer:
    prefix = f"model.layers.{index}"
    hidden, intermediate = config.hidden_size, config.intermediate_size
    q_size = config.num_heads * config.head_dim
    kv_size = config.num_kv_heads * config.head_dim
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    qkv = [
        (f"{attention}.q_proj.weight", q_size),
        (f"{attention}.k_proj.weight", kv_size),
        (f"{attention}.v_proj.weight", kv_size),
    ]
    gate_up = [
        (f"{mlp}.gate_proj.weight", intermediate),
        (f"{mlp}.up_proj.weight", intermediate),
    ]
    return _Layer(
        input_norm=weights.take(f"{prefix}.input_layernorm.weight", hidden),
        qkv=load_linear(weights, qkv, hidden),
        out=load_linear(weights, [(f"{attention}.o_proj.weight", hidden)], q_size),
        mlp_norm=weights.take(f"{prefix}.post_attention_layernorm.weight", hidden),
        gate_up=load_linear(weights, gate_up, hidden),
        down=load_linear(weights, [(f"{mlp}.down_proj.weight", hidden)], intermediate),
    )
