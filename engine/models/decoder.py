"""The decoder that all served architectures are: attention and a SwiGLU MLP, both behind RMSNorm.

`ModelConfig` says in what a model varies: biases, norms of query and key heads, windows by layer,
stretched rotary positions, a tied head.

Source: transformers' `models/{llama,mistral,qwen2,qwen3}` for names and order of operations.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.models.attention import AttentionBackend
from engine.models.hf_config import ModelConfig
from engine.models.layers import rms_norm, rms_norm_heads, silu_mul
from engine.models.linear import Linear, load_linear
from engine.models.loader import WeightSource
from engine.models.rotary import RotaryTable, rotate

# To take memory for logits and give it back at each step costs more than to fill it.
_MAX_KEPT_LOGITS = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Hold the weights of one layer."""

    window: int | None  # how many of the newest tokens a token sees; None is all
    input_norm: Tensor  # [hidden_size]
    qkv: Linear  # hidden_size → (num_heads + 2 * num_kv_heads) * head_dim
    qk_norm: Tensor | None  # [num_heads + num_kv_heads, head_dim]
    out: Linear  # num_heads * head_dim → hidden_size
    mlp_norm: Tensor  # [hidden_size]
    gate_up: Linear  # hidden_size → 2 * intermediate_size
    down: Linear  # intermediate_size → hidden_size


class Decoder:
    """Implement `CausalLM` for every architecture of the registry."""

    def __init__(self, config: ModelConfig, weights: WeightSource) -> None:
        self.config = config
        hidden, vocab = config.hidden_size, config.vocab_size
        self.embedding = weights.take("model.embed_tokens.weight", vocab, hidden)
        self.layers = [_load_layer(config, weights, i) for i in range(config.num_layers)]
        self.norm = weights.take("model.norm.weight", hidden)
        if config.tie_word_embeddings:
            self.head = Linear(self.embedding.t())
        else:
            self.head = load_linear(weights, [("lm_head", vocab)], hidden)
        weights.refuse_rest_of("model.layers.")
        self.rotary = RotaryTable(
            config.rope,
            head_dim=config.head_dim,
            num_positions=config.max_position_embeddings,
            dtype=self.embedding.dtype,
            device=self.embedding.device,
        )
        self._logits = torch.empty(0)

    @property
    def num_kv_heads(self) -> int:
        """Count the key heads that the weights are for: a share of the model's on one of several
        devices, with as many query heads for each.
        """
        config = self.config
        group = config.num_heads // config.num_kv_heads
        return self.layers[0].qkv.out_features // (config.head_dim * (group + 2))

    def linears(self) -> list[Linear]:
        """List the linear layers whose layout is to be chosen: none that has 8 bits."""
        per_layer = [(x.qkv, x.out, x.gate_up, x.down) for x in self.layers]
        every = [linear for layer in per_layer for linear in layer] + [self.head]
        return [linear for linear in every if linear.has_layouts]

    @torch.inference_mode()
    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        attention: AttentionBackend,
        logit_rows: Tensor | None,
    ) -> Tensor:
        return self._widen(self.head(self.hidden(token_ids, positions, attention, logit_rows)))

    @torch.inference_mode()
    def hidden(
        self,
        token_ids: Tensor,
        positions: Tensor,
        attention: AttentionBackend,
        rows: Tensor | None,
    ) -> Tensor:
        """Run the decoder as `forward` does, up to where the head would begin.

        Returns: the last hidden states of `rows`, normed, [num_rows, hidden_size].
        """
        eps = self.config.rms_norm_eps
        x = F.embedding(token_ids, self.embedding)  # [num_tokens, hidden_size]
        cos, sin = self.rotary.at(positions)
        for index, layer in enumerate(self.layers):
            x = self._attend(index, layer, x, cos, sin, attention)
            gated = silu_mul(layer.gate_up(rms_norm(x, layer.mlp_norm, eps)))
            x = layer.down.add_to(x, gated)
        if rows is not None:
            x = x.index_select(0, rows)
        return rms_norm(x, self.norm, eps)

    def _attend(
        self,
        index: int,
        layer: Layer,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        attention: AttentionBackend,
    ) -> Tensor:
        config = self.config
        qkv = layer.qkv(rms_norm(x, layer.input_norm, config.rms_norm_eps))
        # [num_tokens, num_heads + 2 * num_kv_heads, head_dim]
        qkv = qkv.view(x.shape[0], -1, config.head_dim)
        num_rotated = config.num_heads + config.num_kv_heads
        qk = qkv[:, :num_rotated]
        if layer.qk_norm is not None:
            qk = rms_norm_heads(qk, layer.qk_norm, config.rms_norm_eps)
        qk = rotate(qk, cos, sin)
        attention.write_kv(index, qk[:, config.num_heads :], qkv[:, num_rotated:])
        attended = attention.forward(index, qk[:, : config.num_heads], window=layer.window)
        return layer.out.add_to(x, attended)

    def _widen(self, logits: Tensor) -> Tensor:
        """Turn logits into float32; a decode step's go where those of the step before were."""
        n = logits.numel()
        if logits.dtype == torch.float32 or n > _MAX_KEPT_LOGITS:
            return logits.float()
        if n > len(self._logits):
            self._logits = logits.new_empty(n, dtype=torch.float32)
        return self._logits[:n].view(logits.shape).copy_(logits)


def _load_layer(config: ModelConfig, weights: WeightSource, index: int) -> Layer:
    prefix = f"model.layers.{index}"
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    hidden, intermediate = config.hidden_size, config.intermediate_size
    q_size = config.num_heads * config.head_dim
    kv_size = config.num_kv_heads * config.head_dim
    qkv = [
        (f"{attention}.{name}_proj", size)
        for name, size in (("q", q_size), ("k", kv_size), ("v", kv_size))
    ]
    gate_up = [(f"{mlp}.{name}_proj", intermediate) for name in ("gate", "up")]
    return Layer(
        window=config.windows[index],
        input_norm=weights.take(f"{prefix}.input_layernorm.weight", hidden),
        qkv=load_linear(weights, qkv, hidden, bias=config.qkv_bias),
        qk_norm=_load_qk_norm(config, weights, attention) if config.qk_norm else None,
        out=load_linear(weights, [(f"{attention}.o_proj", hidden)], q_size, bias=config.out_bias),
        mlp_norm=weights.take(f"{prefix}.post_attention_layernorm.weight", hidden),
        gate_up=load_linear(weights, gate_up, hidden, bias=config.mlp_bias),
        down=load_linear(
            weights, [(f"{mlp}.down_proj", hidden)], intermediate, bias=config.mlp_bias
        ),
    )


def _load_qk_norm(config: ModelConfig, weights: WeightSource, attention: str) -> Tensor:
    """Repeat the norms' weights for each query and key head, so that one operation does both."""
    q_norm = weights.take(f"{attention}.q_norm.weight", config.head_dim)
    k_norm = weights.take(f"{attention}.k_norm.weight", config.head_dim)
    heads = [q_norm] * config.num_heads + [k_norm] * config.num_kv_heads
    return torch.stack(heads)
