"""The operations that decoder models share, as plain torch functions, and what a model is."""

from __future__ import annotations

from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from engine.models.attention import AttentionBackend


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
        Returns: float32 logits, [num_rows, vocab_size]; the next call may overwrite them.
        """
        ...


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale rows to unit root mean square, then by `weight`; [..., hidden_size]."""
    return F.rms_norm(x, weight.shape, weight, eps)


def rms_norm_heads(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Do so for every head, with a weight of its own.

    Args: `x`: [num_tokens, num_heads, head_dim]. `weight`: [num_heads, head_dim].
    """
    return F.rms_norm(x, weight.shape[-1:], None, eps).mul_(weight)


def silu_mul(gate_up: Tensor) -> Tensor:
    """Gate the second half by SiLU of the first; [n, 2 * size] → [n, size]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)
