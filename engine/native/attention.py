"""Paged attention by the compiled operators, over block-major caches.

A block holds its keys transposed, so that the scores of sixteen tokens come out of one vector.
Blocks that no table names are never read, nor are values of tokens that were not written, so
nothing is cleared. Arithmetic is float32 whatever the cache's dtype. Implements
`AttentionBackend` on its own; `NativeDecoder` reads `cache` and `batch` and calls none of it
layer by layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.models.attention import AttentionBatch, KVCacheShape
from engine.native.pages_ahead import PagesAhead

# The operators compute sixteen values at a time.
LANES = 16


@dataclass(frozen=True, slots=True)
class NativeBatch:
    """Hold a step's batch as the operators read it, int32; see `AttentionBatch`."""

    query_lens: Tensor  # [num_seqs]
    context_lens: Tensor  # [num_seqs]
    block_tables: Tensor  # [num_seqs, max_num_blocks]


class NativeAttention:
    """Implement `AttentionBackend` on a CPU; `library.load()` must have said True."""

    def __init__(self, shape: KVCacheShape, *, dtype: torch.dtype) -> None:
        assert shape.head_dim % LANES == 0
        heads = (shape.num_layers, shape.num_blocks, shape.num_kv_heads)
        # Not cleared: the system hands out memory when a block is first used. The operators keep
        # two bfloat16 dimensions of a token side by side in a block of keys; the size is the same.
        self.k_cache = torch.empty(*heads, shape.head_dim, shape.block_size, dtype=dtype)
        self.v_cache = torch.empty(*heads, shape.block_size, shape.head_dim, dtype=dtype)
        for cache in (self.k_cache, self.v_cache):
            torch.ops.sluice.use_huge_pages(cache)
        self._pages = PagesAhead((self.k_cache, self.v_cache))

    def plan(self, batch: AttentionBatch) -> None:
        self._pages.reach(int(batch.block_tables.max(initial=0)))
        self.batch = NativeBatch(
            _int32(batch.query_lens), _int32(batch.context_lens), _int32(batch.block_tables)
        )

    def write_kv(self, layer: int, k: Tensor, v: Tensor) -> None:
        torch.ops.sluice.write_kv(
            k,
            v,
            self.k_cache[layer],
            self.v_cache[layer],
            self.batch.query_lens,
            self.batch.context_lens,
            self.batch.block_tables,
        )

    def forward(self, layer: int, q: Tensor, *, window: int | None = None) -> Tensor:
        attended: Tensor = torch.ops.sluice.paged_attention(
            q,
            self.k_cache[layer],
            self.v_cache[layer],
            self.batch.query_lens,
            self.batch.context_lens,
            self.batch.block_tables,
            window or 0,
        )
        return attended


def _int32(values: NDArray[np.int32]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, np.int32))
