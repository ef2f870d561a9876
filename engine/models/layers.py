"""The operations that decoder models share, as plain torch functions, and what a model is.

Weights of linear layers are kept transposed, `[in, out]`: a product of a few rows with them is up
to twice as fast on a CPU as with `[out, in]`, and `addmm` folds the residual sum in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.attention.backend import AttentionBackend
from engine.models.hf_config import ModelConfig
from engine.models.loader import WeightSource


class CausalLM(Protocol):
    """Turn token ids into next-token logits."""

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        attention: AttentionBackend,
        logit_rows: Tensor | None,
    ) -> Tensor:
        """Run the decoder over one planned ragged batch.

        Args: `token_ids`, `positions`: [num_tokens], int64. `logit_rows`: the tokens whose
            logits are wanted, [num_rows], int64; None means all, in order.
        Returns: float32 logits, [num_rows, vocab_size].
        """
        ...


CausalLMFactory = Callable[[ModelConfig, WeightSource], CausalLM]


def load_linear(weights: WeightSource, parts: list[tuple[str, int]], in_features: int) -> Tensor:
    """Merge the linear layers `parts` (name, out_features) that read the same input.

    Returns: [in_features, sum of out_features].
    """
    merged = torch.cat([weights.take(name, out, in_features) for name, out in parts])
    return merged.t().contiguous()


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale rows to unit root mean square, then by `weight`; [..., hidden_size]."""
    return F.rms_norm(x, weight.shape, weight, eps)


def silu_mul(gate_up: Tensor) -> Tensor:
    """Gate the second half by SiLU of the first; [n, 2 * size] → [n, size]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


class RotaryTable:
    """Hold the cosines and sines of all positions, computed once in float32.

    Source: Su et al. 2021 (RoFormer), in the half-split layout of Hugging Face's Llama.
    """

    def __init__(
        self,
        *,
        head_dim: int,
        theta: float,
        num_positions: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        positions = torch.arange(num_positions, dtype=torch.float32)
        angles = torch.outer(positions, 1.0 / theta**exponents)
        sin = angles.sin()
        # The rotation swaps the halves and negates the second; the table carries the sign.
        self._cos = torch.cat((angles.cos(),) * 2, dim=-1).to(device, dtype)
        self._sin = torch.cat((-sin, sin), dim=-1).to(device, dtype)

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Pick cosines and signed sines; each [num_tokens, 1, head_dim]."""
        cos = self._cos.index_select(0, positions)[:, None]
        sin = self._sin.index_select(0, positions)[:, None]
        return cos, sin


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions to `x`; [num_tokens, num_heads, head_dim]."""
    half = x.shape[-1] // 2
    swapped = torch.cat((x[..., half:], x[..., :half]), dim=-1)
    return torch.addcmul(x * cos, swapped, sin)
