"""A KV cache in 8 bits as far as numbers go: what is stored is rounded, but as wide as before.

It is what a cache in float8_e4m3fn computes, on any backend, and saves no memory: the oracle for
one that does, and a way to tell what 8 bits cost in quality.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.models.attention import AttentionBackend, AttentionBatch

_FP8 = torch.float8_e4m3fn
_LARGEST = torch.finfo(_FP8).max


class RoundedKV:
    """Implement `AttentionBackend` over another, with keys and values rounded on their way in."""

    def __init__(self, backend: AttentionBackend) -> None:
        self._backend = backend

    def plan(self, batch: AttentionBatch) -> None:
        self._backend.plan(batch)

    def write_kv(self, layer: int, k: Tensor, v: Tensor) -> None:
        self._backend.write_kv(layer, _round(k), _round(v))

    def forward(self, layer: int, q: Tensor, *, window: int | None = None) -> Tensor:
        return self._backend.forward(layer, q, window=window)


def _round(x: Tensor) -> Tensor:
    return x.float().clamp(-_LARGEST, _LARGEST).to(_FP8).to(x.dtype)
