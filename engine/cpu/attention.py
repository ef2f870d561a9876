"""Paged attention in plain torch: the CPU path, and what every other backend is tested against.

**Cache.** Per layer, token-major: keys and values `[num_slots, num_kv_heads, head_dim]`, where a
block is `block_size` consecutive slots. Storing a token is one row written; gathering a context is
rows copied, and torch's `scaled_dot_product_attention` reads what was gathered as it lies.

**Decode.** Rows attend to a dense copy of their contexts where there is one, see
`engine.cpu.decode_copy`. Otherwise rows of about the same length form a group, which gathers
its contexts into one buffer that all layers and steps reuse, padded to its longest, and attends in
one call. Groups are so small that what they gather is still in the CPU's second-level cache when
it is read. Nothing loops over rows.

**Slices.** One at a time: gather the sequence's context once, then attend in tiles of queries
that see only keys up to their own end.

**Windows.** A layer with a sliding window gathers from the first token on that some query sees.
What is read is planned when the first layer with that window asks for it; a window that no
context of the step exceeds shares the plan of full attention.

**Garbage.** Slots that hold no token of a context are never read: what pads a row is its own
first token again, hidden by a mask.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from engine.cpu.decode_copy import DecodeCopy
from engine.models.attention import AttentionBatch, KVCacheShape

# Keys that a group gathers at once, in bytes: with the values half of a 2 MB second-level cache.
_GATHER_BYTES = 512 << 10
# How many tokens of padding cost less than a group more.
_FREE_PADDING = 256
_TILE_SCORES = 1 << 20
# How large the copy of what decodes may become, as a share of the cache.
_COPY_SHARE = 0.25
_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class _Group:
    """Hold decode rows that attend in one call.

    `rows`: which rows of the batch. `slots`: what they read, each row padded to the longest,
    [num_rows * num_keys]. `seen`: which of it is theirs, [num_rows, 1, 1, num_keys]; None is all.
    """

    rows: slice | Tensor
    num_rows: int
    slots: Tensor
    seen: Tensor | None


@dataclass(frozen=True, slots=True)
class _Slice:
    """Say what one slice reads: `slots`, the first of which is token `first_key` of its sequence.

    `rows`: where its tokens are in the batch. `start`: the position of the first of them.
    """

    rows: slice
    start: int
    first_key: int
    slots: Tensor


@dataclass(frozen=True, slots=True)
class _Reads:
    """Hold what all layers with the same window read in a step."""

    groups: list[_Group]
    slices: list[_Slice]


class ReferenceAttention:
    """Implement `AttentionBackend` with torch operations alone."""

    def __init__(
        self, shape: KVCacheShape, *, dtype: torch.dtype, device: torch.device = _CPU
    ) -> None:
        self._shape = shape
        self._device = device
        # Not cleared: the system hands out memory when a block is first used.
        sizes = (shape.num_layers, shape.num_blocks * shape.block_size)
        heads = (shape.num_kv_heads, shape.head_dim)
        k_cache = torch.empty(*sizes, *heads, dtype=dtype, device=device)
        v_cache = torch.empty_like(k_cache)
        self._k_cache, self._v_cache = list(k_cache), list(v_cache)
        self._max_gathered = _GATHER_BYTES // k_cache[0, 0].nbytes
        self._gathered = torch.empty(2, 0, *heads, dtype=dtype, device=device)
        # The copy is one of a CPU's memory; as an oracle on another device this does without.
        share = _COPY_SHARE if device.type == "cpu" else 0.0
        self._copy = DecodeCopy(
            shape.num_layers,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            dtype=dtype,
            max_bytes=int(2 * k_cache.nbytes * share),
        )

    def plan(self, batch: AttentionBatch) -> None:
        self._batch = batch
        self._longest_context = int(batch.context_lens.max(initial=0))
        self._reads: dict[int | None, _Reads] = {}
        rows = np.repeat(np.arange(len(batch.query_lens)), batch.query_lens)
        slots = self._slots(rows, batch.positions)
        self._write_slots = self._upload(slots)
        self._follow(slots[: batch.num_decodes])

    def write_kv(self, layer: int, k: Tensor, v: Tensor) -> None:
        self._k_cache[layer].index_copy_(0, self._write_slots, k)
        self._v_cache[layer].index_copy_(0, self._write_slots, v)
        if n := self._copy.num_rows:
            self._copy.append(layer, k[:n], v[:n])

    def forward(self, layer: int, q: Tensor, *, window: int | None = None) -> Tensor:
        if window is not None and window >= self._longest_context:
            window = None
        reads = self._reads.get(window)
        if reads is None:
            reads = self._reads[window] = self._plan_reads(window)
        num_copied = self._copy.num_rows if window is None else 0
        if num_copied == len(q):
            return self._decode_copied(layer, q)
        # [num_tokens, num_heads * head_dim]
        out = torch.empty(q.shape[0], q.shape[1] * q.shape[2], dtype=q.dtype, device=q.device)
        if num_copied:
            out[:num_copied] = self._decode_copied(layer, q[:num_copied])
        for group in reads.groups:
            out[group.rows] = self._decode(layer, group, q[group.rows])
        for piece in reads.slices:
            self._attend_slice(layer, piece, q[piece.rows], window, out[piece.rows])
        return out

    def _follow(self, newest: NDArray[np.int64]) -> None:
        """Tell the copy which rows decode; `newest`: where their tokens go, [num_decodes]."""
        lens = self._batch.context_lens[: len(newest)].astype(np.int64)
        before = self._slots(np.arange(len(newest)), np.maximum(lens - 2, 0))
        self._copy.follow(lens, np.where(lens > 1, before, -1), newest)

    def _plan_reads(self, window: int | None) -> _Reads:
        return _Reads(self._plan_groups(window), self._plan_slices(window))

    def _plan_groups(self, window: int | None) -> list[_Group]:
        if window is None and self._copy.num_rows:
            return []
        ends = self._batch.context_lens[: self._batch.num_decodes].astype(np.int64)
        begins = np.zeros_like(ends) if window is None else np.maximum(ends - window, 0)
        return [
            self._plan_group(rows, begins[rows], ends[rows])
            for rows in _group(ends - begins, self._max_gathered)
        ]

    def _plan_group(
        self, rows: NDArray[np.intp], begins: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> _Group:
        lens = ends - begins
        keys = np.arange(lens.max())
        seen = keys < lens[:, None]
        positions = begins[:, None] + np.where(seen, keys, 0)
        contiguous = rows[-1] - rows[0] == len(rows) - 1
        return _Group(
            slice(int(rows[0]), int(rows[-1]) + 1) if contiguous else self._upload(rows),
            len(rows),
            self._upload(self._slots(rows[:, None], positions).reshape(-1)),
            None if seen.all() else torch.from_numpy(seen).to(self._device)[:, None, None],
        )

    def _plan_slices(self, window: int | None) -> list[_Slice]:
        batch, n_decodes = self._batch, self._batch.num_decodes
        slices = []
        begin = n_decodes
        for row in range(n_decodes, len(batch.query_lens)):
            n_tokens, context_len = int(batch.query_lens[row]), int(batch.context_lens[row])
            start = context_len - n_tokens
            first_key = 0 if window is None else max(start - window + 1, 0)
            slots = self._slots(np.intp(row), np.arange(first_key, context_len))
            rows = slice(begin, begin + n_tokens)
            slices.append(_Slice(rows, start, first_key, self._upload(slots)))
            begin += n_tokens
        return slices

    def _slots(
        self, rows: NDArray[np.intp] | np.intp, positions: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Find where the cache holds tokens of rows of the batch."""
        block_size = self._shape.block_size
        blocks = self._batch.block_tables[rows, positions // block_size].astype(np.int64)
        slots: NDArray[np.int64] = blocks * block_size + positions % block_size
        return slots

    def _upload(self, indices: NDArray[np.integer]) -> Tensor:
        return torch.from_numpy(indices).to(self._device)

    def _decode(self, layer: int, group: _Group, q: Tensor) -> Tensor:
        """Let one token a row attend; [num_rows, num_heads * head_dim]."""
        n, shape = group.num_rows, self._shape
        k, v = self._gather(layer, group.slots, n)
        return F.scaled_dot_product_attention(
            q.unsqueeze(2), k, v, attn_mask=group.seen, enable_gqa=True
        ).view(n, shape.num_heads * shape.head_dim)

    def _decode_copied(self, layer: int, q: Tensor) -> Tensor:
        """Do so for all rows that decode, from their copy."""
        for row in self._copy.unfilled(layer):
            positions = np.arange(self._batch.context_lens[row])
            slots = self._upload(self._slots(np.intp(row), positions))
            self._copy.fill(layer, self._k_cache[layer], self._v_cache[layer], row, slots)
        return self._copy.attend(layer, q).view(len(q), -1)

    def _gather(self, layer: int, slots: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
        """Copy tokens of a layer out; each [num_rows, num_kv_heads, num_keys, head_dim]."""
        n = len(slots)
        if n > self._gathered.shape[1]:
            self._gathered = self._gathered.new_empty(2, n + n // 2, *self._gathered.shape[2:])
        k, v = self._gathered[0, :n], self._gathered[1, :n]
        torch.index_select(self._k_cache[layer], 0, slots, out=k)
        torch.index_select(self._v_cache[layer], 0, slots, out=v)
        dense = (num_rows, n // num_rows, *k.shape[1:])
        return k.view(dense).transpose(1, 2), v.view(dense).transpose(1, 2)

    def _attend_slice(
        self, layer: int, piece: _Slice, q: Tensor, window: int | None, out: Tensor
    ) -> None:
        """Fill `out`, [n_tokens, num_heads * head_dim]."""
        k, v = self._gather(layer, piece.slots, 1)
        n_tokens, num_heads, head_dim = q.shape
        queries = q.transpose(0, 1)[None]  # [1, num_heads, n_tokens, head_dim]
        outs = out.view(n_tokens, num_heads, head_dim).transpose(0, 1)
        # Counted from the first key that was gathered.
        start = piece.start - piece.first_key
        tile = self._tile(start + n_tokens, window)
        for begin in range(0, n_tokens, tile):
            end = min(begin + tile, n_tokens)
            last_key = start + end
            first_key = 0 if window is None else max(start + begin - window + 1, 0)
            aligned = start + begin == first_key and (window is None or end - begin <= window)
            seen = None
            if not aligned and end - begin > 1:
                seen = _seen(start + begin, first_key, last_key, window, q.device)
            outs[:, begin:end] = F.scaled_dot_product_attention(
                queries[:, :, begin:end],
                k[:, :, first_key:last_key],
                v[:, :, first_key:last_key],
                attn_mask=seen,
                is_causal=aligned and end - begin > 1,
                enable_gqa=True,
            )[0]

    def _tile(self, num_keys: int, window: int | None) -> int:
        """Choose how many queries to compute at once; a tile of n sees up to n + window keys."""
        if window is None:
            return max(16, _TILE_SCORES // num_keys)
        longest = max(64, window)
        num_keys = min(num_keys, longest + window)
        return min(longest, max(16, _TILE_SCORES // num_keys))


def _group(lens: NDArray[np.int64], max_tokens: int) -> list[NDArray[np.intp]]:
    """Part rows into groups of similar length that gather at most `max_tokens`, padding included.

    A row that is longer than that is a group of its own. Within a group, rows are in order.
    """
    order = np.argsort(-lens, kind="stable")
    ordered = lens[order].tolist()
    groups, first, padding = [], 0, 0
    for i, n in enumerate(ordered):
        longest = ordered[first]
        padding += longest - n
        too_large = (i + 1 - first) * longest > max_tokens
        if i > first and (too_large or padding > _FREE_PADDING):
            groups.append(np.sort(order[first:i]))
            first, padding = i, 0
    if len(ordered):
        groups.append(np.sort(order[first:]))
    return groups


def _seen(
    first_query: int, first_key: int, last_key: int, window: int | None, device: torch.device
) -> Tensor:
    """Mark the keys `[first_key, last_key)` that queries see, the last of which is the last key.

    Returns: [last_key - first_query, last_key - first_key], bool.
    """
    keys = torch.arange(first_key, last_key, device=device)
    queries = torch.arange(first_query, last_key, device=device)[:, None]
    seen = keys <= queries
    return seen if window is None else seen & (keys > queries - window)
