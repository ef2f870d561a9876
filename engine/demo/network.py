"""The demo model's network, for training: a Llama whose names are those of its checkpoint.

Written out here because `engine.models` knows no gradients and no packing. The tests run the
result through the engine and through transformers, so the three agree.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from engine.demo.batches import CONTEXT, FIRST_CONTEXT
from engine.demo.vocabulary import BOS, EOS, SPECIAL_TOKENS, VOCAB_SIZE
from engine.models.rope_config import Llama3Scaling, RopeConfig
from engine.models.rotary import inverse_frequencies

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE = 192, 4, 6, 3, 32, 576
FIRST_ROPE = RopeConfig(theta=10_000.0)
# Pairs that never turned once within the first context turn as much slower as the context is
# longer, so that no distance is new to them; those that turned four times tell neighbours apart
# and stay.
STRETCH = Llama3Scaling(
    factor=CONTEXT / FIRST_CONTEXT,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_positions=FIRST_CONTEXT,
)
EPSILON = 1e-5
BOS_ID, EOS_ID = SPECIAL_TOKENS.index(BOS), SPECIAL_TOKENS.index(EOS)
Cache = list[tuple[Tensor, Tensor]]  # keys and values by layer


class Llama(nn.Module):
    """The architecture of `LlamaForCausalLM` with tied embeddings, named as its checkpoints."""

    def __init__(self) -> None:
        super().__init__()
        self.rope = FIRST_ROPE
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(VOCAB_SIZE, HIDDEN)
        self.model.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.model.norm = nn.RMSNorm(HIDDEN, EPSILON)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * LAYERS) if residual else 0.02)

    def stretch(self) -> None:
        """Spread the positions of the first context over the whole one."""
        self.rope = replace(FIRST_ROPE, scaling=STRETCH)

    def hidden(
        self, tokens: Tensor, offset: int, mask: Tensor | None, cache: Cache | None = None
    ) -> Tensor:
        """Map tokens [num_rows, length] to hidden states [num_rows, length, HIDDEN]."""
        rotation = _rotation(self.rope, offset, tokens.shape[1])
        states: Tensor = self.model.embed_tokens(tokens)  # type: ignore[operator]
        layers: Any = self.model.layers  # nn.Module types its attributes as Tensor | Module
        for number, layer in enumerate(layers):
            states = layer(states, rotation, mask, cache, number)
        return self.model.norm(states)  # type: ignore[operator,no-any-return]

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.model.embed_tokens.weight)  # type: ignore[union-attr,arg-type]


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(HIDDEN, EPSILON)
        self.self_attn = Attention()
        self.post_attention_layernorm = nn.RMSNorm(HIDDEN, EPSILON)
        self.mlp = Mlp()

    def forward(
        self,
        states: Tensor,
        rotation: tuple[Tensor, Tensor],
        mask: Tensor | None,
        cache: Cache | None,
        number: int,
    ) -> Tensor:
        states = states + self.self_attn(
            self.input_layernorm(states), rotation, mask, cache, number
        )
        return states + self.mlp(self.post_attention_layernorm(states))  # type: ignore[no-any-return]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(HIDDEN, HEADS * HEAD_DIM, bias=False)
        self.k_proj = nn.Linear(HIDDEN, KV_HEADS * HEAD_DIM, bias=False)
        self.v_proj = nn.Linear(HIDDEN, KV_HEADS * HEAD_DIM, bias=False)
        self.o_proj = nn.Linear(HEADS * HEAD_DIM, HIDDEN, bias=False)

    def forward(
        self,
        states: Tensor,
        rotation: tuple[Tensor, Tensor],
        mask: Tensor | None,
        cache: Cache | None,
        number: int,
    ) -> Tensor:
        num_rows, length, _ = states.shape
        shape = (num_rows, length, -1, HEAD_DIM)
        q = _rotate(self.q_proj(states).view(shape).transpose(1, 2), rotation)
        k = _rotate(self.k_proj(states).view(shape).transpose(1, 2), rotation)
        v = (
            self.v_proj(states).view(shape).transpose(1, 2)
        )  # [num_rows, KV_HEADS, length, HEAD_DIM]
        if cache is not None:
            if number < len(cache):
                k = torch.cat((cache[number][0], k), 2)
                v = torch.cat((cache[number][1], v), 2)
                cache[number] = (k, v)
            else:
                cache.append((k, v))
        causal = mask is None and length > 1
        mixed = F.scaled_dot_product_attention(
            q, k.to(q.dtype), v.to(q.dtype), attn_mask=mask, is_causal=causal, enable_gqa=True
        )
        return self.o_proj(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(HIDDEN, INTERMEDIATE, bias=False)
        self.up_proj = nn.Linear(HIDDEN, INTERMEDIATE, bias=False)
        self.down_proj = nn.Linear(INTERMEDIATE, HIDDEN, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        gated = F.silu(self.gate_proj(states)) * self.up_proj(states)
        return self.down_proj(gated)  # type: ignore[no-any-return]


def _rotation(rope: RopeConfig, offset: int, length: int) -> tuple[Tensor, Tensor]:
    positions = torch.arange(offset, offset + length)
    angles = torch.outer(positions, inverse_frequencies(rope, HEAD_DIM)).repeat(1, 2)
    return angles.cos(), angles.sin()  # [length, HEAD_DIM]


def _rotate(heads: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    first, second = heads.float().chunk(2, -1)
    turned = heads * rotation[0] + torch.cat((-second, first), -1) * rotation[1]
    return turned.to(heads.dtype)


def write_model(network: Llama, model_dir: Path) -> None:
    """Write the weights of a stretched network and configs as transformers 5 lays them out."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": EPSILON,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": FIRST_ROPE.theta,
            "factor": STRETCH.factor,
            "low_freq_factor": STRETCH.low_freq_factor,
            "high_freq_factor": STRETCH.high_freq_factor,
            "original_max_position_embeddings": STRETCH.original_max_positions,
        },
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "dtype": "bfloat16",
    }
    generation = {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID, "do_sample": False}
    for name, content in (("config", config), ("generation_config", generation)):
        (model_dir / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")
    tensors = {name: tensor.contiguous() for name, tensor in network.state_dict().items()}
    path = model_dir / "model.safetensors"
    save_file(tensors, path, metadata={"format": "pt"})
    path.chmod(0o644)  # it is written for its owner alone, but another user may serve it
