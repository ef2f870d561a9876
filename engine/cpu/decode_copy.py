"""A dense copy of the contexts that decode, kept from step to step.

Gathering a context out of the paged cache costs as much as attending to it. So rows that go on
decoding keep theirs in one dense tensor a layer, to which each step adds a token a row, and
attention reads it as it lies. The paged cache stays the truth: a row that is new or has moved is
gathered from there again, by each layer that reads it.

**Whose row.** A row is known by the slot of the token before its newest, which the step before
wrote: as long as a sequence decodes at every step, nobody else writes there. A row that misses a
step is forgotten.

**Bounds.** There is no copy, and the caller gathers, where it would need more than its share of
memory, or where the rows are so unequal that padding them costs more than gathering them.

**Garbage.** What lies behind a row's context is hidden by a mask, but 0 * NaN is NaN: it is
cleared when the row is filled, and only the row's own tokens are written to it from then on.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

_MIN_TOKENS = 32
# Padded tokens per token: a padded one is read, a gathered one is read twice and written.
_MAX_PADDING = 1.5


class DecodeCopy:
    """Hold keys and values of the rows that decode, for all layers; on a CPU.

    `num_rows` is how many rows it holds since the last `follow`: all of that step, or none.
    """

    def __init__(
        self,
        num_layers: int,
        *,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        max_bytes: int,
    ) -> None:
        self._heads = (num_kv_heads, head_dim)
        self._dtype = dtype
        token_bytes = 2 * num_layers * num_kv_heads * head_dim * dtype.itemsize
        self._capacity = max_bytes // token_bytes
        self._layers: list[Tensor] = []
        # The same, keys and values, with rows and tokens as one dimension.
        self._slots: list[tuple[Tensor, ...]] = []
        self._is_filled = np.zeros((num_layers, 0), np.bool_)
        self._newest_slots = np.empty(0, np.int64)
        # Which of its rows each row of the batch has, [num_rows]; as a tensor, None: the same.
        self._order = np.empty(0, np.int64)
        self._permutation: Tensor | None = None

    @property
    def num_rows(self) -> int:
        return len(self._newest_slots)

    def follow(
        self, lens: NDArray[np.int64], before: NDArray[np.int64], newest: NDArray[np.int64]
    ) -> None:
        """Take over the rows of a step.

        Args: `lens`: tokens of each row, the newest included. `before`, `newest`: the slots of
            the last two of them; `before` is -1 for a row of one token. All [num_rows].
        """
        longest = int(lens.max(initial=0))
        if not self._fits(len(lens), longest, int(lens.sum())):
            self._newest_slots = self._newest_slots[:0]
            return
        if len(lens) != self.num_rows or (before != self._newest_slots[self._order]).any():
            self._place(before)
        self._reserve(len(lens), longest)
        self._newest_slots[self._order] = newest
        self._num_tokens = longest
        self._written = torch.from_numpy(self._order * self._layers[0].shape[2] + lens - 1)
        self._mask = self._hide(lens)

    def append(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Add each row's newest token; both [num_rows, num_kv_heads, head_dim]."""
        keys, values = self._slots[layer]
        keys.index_copy_(0, self._written, k)
        values.index_copy_(0, self._written, v)

    def fill(self, layer: int, k_cache: Tensor, v_cache: Tensor, row: int, slots: Tensor) -> None:
        """Gather a row of the batch from a layer's cache, [num_slots, num_kv_heads, head_dim]."""
        for cache, copy in zip((k_cache, v_cache), self._layers[layer], strict=True):
            tokens = copy[self._order[row]]
            torch.index_select(cache, 0, slots, out=tokens[: len(slots)])
            tokens[len(slots) :] = 0
        self._is_filled[layer, self._order[row]] = True

    def unfilled(self, layer: int) -> list[int]:
        """List the rows of the batch that are to be filled before the layer is read."""
        filled = self._is_filled[layer, : self.num_rows]
        return [] if filled.all() else np.flatnonzero(~filled[self._order]).tolist()

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """Let the rows of the batch attend; both [num_rows, num_heads, head_dim]."""
        k, v = self._layers[layer][:, : self.num_rows, : self._num_tokens].transpose(2, 3)
        if self._permutation is not None:
            q = torch.empty_like(q).index_copy_(0, self._permutation, q)
        out = F.scaled_dot_product_attention(
            q.unsqueeze(2), k, v, attn_mask=self._mask, enable_gqa=True
        ).squeeze(2)
        return out if self._permutation is None else out.index_select(0, self._permutation)

    def _fits(self, num_rows: int, longest: int, num_tokens: int) -> bool:
        if not num_rows or num_rows * longest > _MAX_PADDING * num_tokens:
            return False
        return _grown(num_rows, 1) * _grown(longest, _MIN_TOKENS) <= self._capacity

    def _place(self, before: NDArray[np.int64]) -> None:
        """Let rows that go on stay where they are, and put the others into what is free."""
        n = len(before)
        rows = {slot: row for row, slot in enumerate(self._newest_slots.tolist()) if row < n}
        order = np.array([rows.pop(slot, -1) for slot in before.tolist()], np.int64)
        free = np.setdiff1d(np.arange(n), order)
        order[order < 0] = free
        self._is_filled[:, free[free < self._is_filled.shape[1]]] = False
        self._newest_slots = np.empty(n, np.int64)
        self._order = order
        self._permutation = None if (order == np.arange(n)).all() else torch.from_numpy(order)

    def _hide(self, lens: NDArray[np.int64]) -> Tensor | None:
        """Make what is added to scores, [num_rows, 1, 1, num_tokens]; None where all is seen."""
        own = np.empty_like(lens)
        own[self._order] = lens
        hidden = np.arange(self._num_tokens) >= own[:, None]
        if not hidden.any():
            return None
        mask = torch.from_numpy(np.where(hidden, np.float32(-np.inf), np.float32(0)))
        return mask.to(self._dtype)[:, None, None]

    def _reserve(self, num_rows: int, num_tokens: int) -> None:
        """Make room by doubling; what was there is filled again."""
        if self._layers:
            _, rows, tokens = self._layers[0].shape[:3]
            if num_rows <= rows and num_tokens <= tokens:
                return
        sizes = (2, _grown(num_rows, 1), _grown(num_tokens, _MIN_TOKENS), *self._heads)
        num_layers = len(self._is_filled)
        self._layers.clear()
        self._slots.clear()
        self._layers += [torch.empty(sizes, dtype=self._dtype) for _ in range(num_layers)]
        self._slots += [copy.flatten(1, 2).unbind() for copy in self._layers]
        self._is_filled = np.zeros((num_layers, sizes[1]), np.bool_)


def _grown(size: int, least: int) -> int:
    return max(least, 1 << (size - 1).bit_length())
