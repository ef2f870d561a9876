"""Batches that attention is timed on: what decoding and prefills look like while one serves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.kernels.decode_pieces import count_pieces, most_pieces
from engine.kernels.operations import PREFILL_QUERIES, Operations, StepInputs

_BLOCK_SIZE = 64
# Caches that are read in turn, so that none is still in the device's second-level cache.
_ROTATED_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Heads:
    """Name a model's attention heads."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """Describe a batch of equal rows: how many, the queries of each, and their contexts."""

    num_rows: int
    num_queries: int
    context_len: int


DECODES = (AttentionCase(1, 1, 8192), AttentionCase(32, 1, 2048), AttentionCase(256, 1, 1024))
PREFILLS = (AttentionCase(4, 512, 512), AttentionCase(1, 2048, 2048), AttentionCase(1, 2048, 16384))


class AttentionBatch:
    """Hold the tensors of a case, random ones; `attend` goes on to the next cache each time."""

    def __init__(
        self,
        case: AttentionCase,
        heads: Heads,
        *,
        dtype: torch.dtype,
        kv_dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.inputs = make_inputs(case, device)
        places = self.inputs.block_tables.numel() * _BLOCK_SIZE
        shape = (places, heads.num_kv_heads, heads.head_dim)
        num_bytes = 2 * places * heads.num_kv_heads * heads.head_dim * kv_dtype.itemsize
        self.num_caches = max(1, _ROTATED_BYTES // num_bytes) if device.type == "cuda" else 1
        self._caches = [
            (_randn(shape, kv_dtype, device), _randn(shape, kv_dtype, device))
            for _ in range(self.num_caches)
        ]
        num_tokens = case.num_rows * case.num_queries
        self.q = _randn((num_tokens, heads.num_heads, heads.head_dim), dtype, device)
        self._next = 0

    @property
    def k_cache(self) -> Tensor:
        return self._caches[0][0]

    def attend(self, operations: Operations) -> Tensor:
        """Compute the case once."""
        k_cache, v_cache = self._caches[self._next]
        self._next = (self._next + 1) % self.num_caches
        return operations.attend(
            self.q, k_cache, v_cache, self.inputs, block_size=_BLOCK_SIZE, window=None
        )


def make_inputs(case: AttentionCase, device: torch.device) -> StepInputs:
    """Describe the batch as kernels read it; blocks lie anywhere in the cache."""
    rows, queries = case.num_rows, case.num_queries
    num_blocks = -(-case.context_len // _BLOCK_SIZE)
    # One table more: that of rows that pad.
    blocks = torch.randperm((rows + 1) * num_blocks, dtype=torch.int32)
    firsts = range(0, queries, PREFILL_QUERIES)
    tiles = [(row, first) for row in range(rows) for first in firsts] if queries > 1 else None
    first_position = case.context_len - queries

    def ints(values: list[int] | list[tuple[int, int]]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    num_keys = np.full(rows, case.context_len if queries == 1 else 0, np.int32)
    room = most_pieces(rows)
    counts = count_pieces(num_keys, room)
    piece_rows = np.repeat(np.arange(rows), counts).tolist()

    return StepInputs(
        slots=ints(list(range(rows))),
        query_starts=ints([row * queries for row in range(rows + 1)]),
        context_lens=ints([case.context_len] * rows),
        token_rows=ints([row for row in range(rows) for _ in range(queries)]),
        positions=ints([first_position + i for _ in range(rows) for i in range(queries)]),
        tiles=None if tiles is None else ints(tiles),
        piece_rows=ints(piece_rows + [-1] * (room - len(piece_rows))),
        piece_starts=ints([0, *np.cumsum(counts).tolist()]),
        block_tables=blocks.view(rows + 1, num_blocks).to(device),
        block_columns=ints([]),
        new_blocks=ints([]),
        tokens=ints([]),
    )


def _randn(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.randn(shape, device=device).to(dtype)
