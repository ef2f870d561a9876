"""Batches that attention is timed on: what decoding and prefills look like while one serves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.kernels.choose import decode_wave
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
    """Describe a batch: how many rows, the queries of each, and how long contexts are.

    They are equal, or ragged: from an eighth of `context_len` to twice it, and that on average.
    """

    num_rows: int
    num_queries: int
    context_len: int
    is_ragged: bool = False

    def context_lens(self) -> list[int]:
        """List the contexts of the rows, the same ones each time."""
        if not self.is_ragged:
            return [self.context_len] * self.num_rows
        low, high = self.context_len // 8, self.context_len * 15 // 8
        drawn = np.random.default_rng(self.num_rows).integers(low, high, self.num_rows)
        return [int(n) for n in drawn]


# 96, 160 and 200 rows are those that whole rows leave a wave of programs half empty with.
DECODES = (
    AttentionCase(1, 1, 8192),
    AttentionCase(32, 1, 2048),
    AttentionCase(96, 1, 1024),
    AttentionCase(160, 1, 1024, is_ragged=True),
    AttentionCase(200, 1, 1024),
    AttentionCase(256, 1, 1024, is_ragged=True),
)
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
        num_places = (case.num_rows + 1) * _num_blocks(case) * _BLOCK_SIZE
        shape = (num_places, heads.num_kv_heads, heads.head_dim)
        num_bytes = 2 * num_places * heads.num_kv_heads * heads.head_dim * kv_dtype.itemsize
        self.num_caches = max(1, _ROTATED_BYTES // num_bytes) if device.type == "cuda" else 1
        self._caches = [
            (_randn(shape, kv_dtype, device), _randn(shape, kv_dtype, device))
            for _ in range(self.num_caches)
        ]
        self.inputs = make_inputs(case, device, decode_wave(self.k_cache, dtype))
        num_tokens = case.num_rows * case.num_queries
        self.q = _randn((num_tokens, heads.num_heads, heads.head_dim), dtype, device)
        self._case = case
        self._next = 0

    def part(self) -> None:
        """Part the contexts anew, as the settings are now."""
        self.inputs = make_inputs(
            self._case, self.q.device, decode_wave(self.k_cache, self.q.dtype)
        )

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


def make_inputs(case: AttentionCase, device: torch.device, wave: int) -> StepInputs:
    """Describe the batch as kernels read it; blocks lie anywhere in the cache."""
    rows, queries, contexts = case.num_rows, case.num_queries, case.context_lens()
    num_blocks = _num_blocks(case)
    # One table more: that of rows that pad.
    blocks = torch.randperm((rows + 1) * num_blocks, dtype=torch.int32)
    firsts = range(0, queries, PREFILL_QUERIES)
    tiles = [(row, first) for row in range(rows) for first in firsts] if queries > 1 else None

    def ints(values: list[int] | list[tuple[int, int]]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    num_keys = np.array(contexts if queries == 1 else [0] * rows, np.int32)
    room = most_pieces(rows, wave)
    counts = count_pieces(num_keys, room, wave)
    piece_rows = np.repeat(np.arange(rows), counts).tolist()

    return StepInputs(
        slots=ints(list(range(rows))),
        query_starts=ints([row * queries for row in range(rows + 1)]),
        context_lens=ints(contexts),
        token_rows=ints([row for row in range(rows) for _ in range(queries)]),
        positions=ints([n - queries + i for n in contexts for i in range(queries)]),
        tiles=None if tiles is None else ints(tiles),
        piece_rows=ints(piece_rows + [-1] * (room - len(piece_rows))),
        piece_starts=ints([0, *np.cumsum(counts).tolist()]),
        block_tables=blocks.view(rows + 1, num_blocks).to(device),
        block_columns=ints([]),
        new_blocks=ints([]),
        tokens=ints([]),
    )


def _num_blocks(case: AttentionCase) -> int:
    return -(-max(case.context_lens()) // _BLOCK_SIZE)


def _randn(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.randn(shape, device=device).to(dtype)
