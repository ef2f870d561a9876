"""What a model asks of attention over a paged KV cache.

One ragged batch a step: the rows that decode (one query token each) come first, then the slices
(prefill, chunk, resume) in any lengths. A backend owns the KV cache, is told the batch once by
`plan`, and is then called layer by layer: `write_kv` stores the batch's own keys and values,
`forward` lets every query see its sequence up to itself. It knows nothing of models, sampling or
who owns a block; a block that no table of the batch names may hold anything, NaN included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheShape:
    """Give the sizes of the KV cache and of the heads that read it."""

    num_layers: int
    num_blocks: int
    block_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionBatch:
    """Describe one step's ragged batch; `num_seqs` sequences, the first `num_decodes` decode.

    `positions`: each query token's index in its sequence, [num_tokens].
    `query_lens`: tokens that each sequence computes now (1 where it decodes), [num_seqs].
    `context_lens`: tokens of each sequence once this step is written, [num_seqs].
    `block_tables`: block ids in order, at least as many as the context needs and anything after
    them, [num_seqs, max_num_blocks].
    """

    num_decodes: int
    positions: NDArray[np.int64]
    query_lens: NDArray[np.int32]
    context_lens: NDArray[np.int32]
    block_tables: NDArray[np.int32]


class AttentionBackend(Protocol):
    """Attend over a paged KV cache that the backend owns."""

    def plan(self, batch: AttentionBatch) -> None:
        """Prepare what all layers of this step share; replaces the plan before."""
        ...

    def write_kv(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Store the batch's keys and values; both [num_tokens, num_kv_heads, head_dim]."""
        ...

    def forward(self, layer: int, q: Tensor, *, window: int | None = None) -> Tensor:
        """Attend causally, scaled by head_dim ** -0.5; call after `write_kv` of the layer.

        Args: `q`: [num_tokens, num_heads, head_dim]. `window`: how many of the newest tokens
            each query sees, itself included; None is all. Blocks that lie wholly outside the
            windows of a sequence's queries are not read.
        Returns: [num_tokens, num_heads * head_dim], in q's dtype.
        """
        ...
