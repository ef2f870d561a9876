"""Paged attention in plain torch: the CPU path, and what every other backend is tested against.

**Cache.** Per layer, block-major: keys `[num_blocks, num_kv_heads, head_dim, block_size]`
(transposed, which makes the gather and q·k of a decode 1.4 times faster than rows do), values
`[num_blocks, num_kv_heads, block_size, head_dim]`. Query heads that share a KV head are rows of
one matrix product.

**Decode.** A batch is a list of (row, block) pairs, so a row costs what its own context needs and
no row is padded to another's length. Pairs go through a gather buffer that stays in the CPU's
second-level cache: gather keys → scores → exponentials relative to the pair's own maximum; gather
values → partial output. At the end the pairs of a row are brought to the row's maximum and summed
(the split softmax of FlashDecoding, Dao et al. 2023, one split a block). Nothing loops over rows.

**Slices.** One at a time: gather the sequence's blocks once, then attend in tiles of queries
that see only keys up to their own end.

**Windows.** A layer with a sliding window has pairs, and gathers blocks, from the first token on
that some query sees. What is read is planned when the first layer with that window asks for it;
a window that no context of the step exceeds shares the plan of full attention.

**Garbage.** Blocks that no table names are never read. In a row's last block the tail after its
context may hold anything: scores there are overwritten by -inf, and as 0 * NaN is NaN, the values
of a block are cleared when its first token is written. What lies before a window in its first
block are the row's own tokens: they are hidden by -inf alone.

All arithmetic is float32 whatever the cache's dtype.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.attention.backend import AttentionBatch, KVCacheShape

# Half of a common 1 MB second-level cache, measured best on x86 with 2 MB; on a GPU larger
# pieces keep the device busy.
_GATHER_BYTES_CPU = 512 << 10
_GATHER_BYTES_GPU = 256 << 20
_TILE_SCORES = 1 << 20
_FEW_ROWS = 2


@dataclass(frozen=True, slots=True)
class _Decodes:
    """Hold the (row, block) pairs of the decode rows; those with hidden tokens come first.

    `rows`, `blocks`: [num_pairs]. `hidden`: the tokens of the first pairs that their rows do not
    see, [num_partial, 1, block_size].
    """

    rows: Tensor
    blocks: Tensor
    hidden: Tensor


@dataclass(frozen=True, slots=True)
class _Slice:
    """Say what one slice reads: `block_ids`, whose first token is `first_key` of its sequence.

    `rows`: where its tokens are in the batch. `start`: the position of the first of them.
    """

    rows: slice
    start: int
    first_key: int
    block_ids: Tensor


@dataclass(frozen=True, slots=True)
class _Reads:
    """Hold what all layers with the same window read in a step."""

    decodes: _Decodes | None
    slices: list[_Slice]


class ReferenceAttention:
    """Implement `AttentionBackend` with torch operations alone."""

    def __init__(self, shape: KVCacheShape, *, dtype: torch.dtype, device: torch.device) -> None:
        self._shape = shape
        self._device = device
        self._group = shape.num_heads // shape.num_kv_heads
        self._scale = shape.head_dim**-0.5
        # Not cleared: the system hands out memory when a block is first used.
        heads = (shape.num_layers, shape.num_blocks, shape.num_kv_heads)
        self._k_cache = torch.empty(
            *heads, shape.head_dim, shape.block_size, dtype=dtype, device=device
        )
        self._v_cache = torch.empty(
            *heads, shape.block_size, shape.head_dim, dtype=dtype, device=device
        )
        block_bytes = self._k_cache[0, 0].nbytes
        gather_bytes = _GATHER_BYTES_CPU if device.type == "cpu" else _GATHER_BYTES_GPU
        self._chunk = max(8, gather_bytes // block_bytes)
        self._gathered_k = torch.empty(
            self._chunk, *self._k_cache.shape[2:], dtype=dtype, device=device
        )
        self._gathered_v = self._gathered_k.view(self._chunk, *self._v_cache.shape[2:])
        self._partials = torch.empty(0, device=device)

    def plan(self, batch: AttentionBatch) -> None:
        self._batch = batch
        # A few rows are quicker one at a time: fewer operations, and their cost is per operation.
        self._num_decodes = batch.num_decodes if batch.num_decodes > _FEW_ROWS else 0
        self._longest_context = int(batch.context_lens.max(initial=0))
        self._reads: dict[int | None, _Reads] = {}
        self._plan_writes(batch)

    def write_kv(self, layer: int, k: Tensor, v: Tensor) -> None:
        if self._fresh_blocks is not None:
            self._v_cache[layer].index_fill_(0, self._fresh_blocks, 0.0)
        self._k_cache[layer][self._write_blocks, :, :, self._write_offsets] = k
        self._v_cache[layer][self._write_blocks, :, self._write_offsets] = v

    def forward(self, layer: int, q: Tensor, *, window: int | None = None) -> Tensor:
        # [num_tokens, num_heads * head_dim]
        out = torch.empty(q.shape[0], q.shape[1] * q.shape[2], dtype=q.dtype, device=q.device)
        if window is not None and window >= self._longest_context:
            window = None
        reads = self._reads.get(window)
        if reads is None:
            reads = self._reads[window] = self._plan_reads(window)
        if reads.decodes is not None:
            self._decode(layer, reads.decodes, q, out)
        for piece in reads.slices:
            out[piece.rows] = self._attend_slice(layer, piece, q[piece.rows], window)
        return out

    def _plan_writes(self, batch: AttentionBatch) -> None:
        block_size = self._shape.block_size
        rows = np.repeat(np.arange(len(batch.query_lens)), batch.query_lens)
        blocks = batch.block_tables[rows, batch.positions // block_size]
        offsets = batch.positions % block_size
        fresh = blocks[offsets == 0]
        self._write_blocks = self._upload(blocks)
        self._write_offsets = self._upload(offsets)
        self._fresh_blocks = self._upload(fresh) if len(fresh) else None

    def _plan_reads(self, window: int | None) -> _Reads:
        decodes = self._plan_decodes(window) if self._num_decodes else None
        return _Reads(decodes, self._plan_slices(window))

    def _plan_decodes(self, window: int | None) -> _Decodes:
        n, block_size = self._num_decodes, self._shape.block_size
        ends = self._batch.context_lens[:n].astype(np.int64)
        begins = np.zeros_like(ends) if window is None else np.maximum(ends - window, 0)
        last = (ends - 1) // block_size
        # The blocks that a row sees in part come first: its last, then its first where a window
        # begins inside of it. The full ones follow.
        first_full = -(-begins // block_size)
        in_part = np.flatnonzero((begins % block_size > 0) & (first_full <= last))
        num_full = np.maximum(last - first_full, 0)
        full_rows = np.repeat(np.arange(n), num_full)
        full_columns = (
            np.arange(len(full_rows))
            - np.repeat(np.cumsum(num_full) - num_full, num_full)
            + np.repeat(first_full, num_full)
        )
        rows = np.concatenate((np.arange(n), in_part, full_rows))
        columns = np.concatenate((last, first_full[in_part] - 1, full_columns))
        partial = slice(0, n + len(in_part))
        tokens = columns[partial, None] * block_size + np.arange(block_size)
        hidden = tokens >= ends[rows[partial], None]
        if window is not None:
            hidden |= tokens < begins[rows[partial], None]
        return _Decodes(
            self._upload(rows),
            self._upload(self._batch.block_tables[rows, columns]),
            torch.from_numpy(hidden).to(self._device)[:, None],
        )

    def _plan_slices(self, window: int | None) -> list[_Slice]:
        batch, block_size = self._batch, self._shape.block_size
        slices = []
        begin = self._num_decodes
        for row in range(self._num_decodes, len(batch.query_lens)):
            n_tokens, context_len = int(batch.query_lens[row]), int(batch.context_lens[row])
            start = context_len - n_tokens
            first_block = 0 if window is None else max(start - window + 1, 0) // block_size
            table = batch.block_tables[row, first_block : -(-context_len // block_size)]
            rows = slice(begin, begin + n_tokens)
            slices.append(_Slice(rows, start, first_block * block_size, self._upload(table)))
            begin += n_tokens
        return slices

    def _upload(self, indices: NDArray[np.integer]) -> Tensor:
        return torch.from_numpy(indices.astype(np.int64)).to(self._device)

    def _decode(self, layer: int, decodes: _Decodes, q: Tensor, out: Tensor) -> None:
        """Fill the decode rows of `out` from their (row, block) pairs."""
        shape, n = self._shape, self._num_decodes
        num_pairs, num_partial = len(decodes.rows), len(decodes.hidden)
        kvh, heads, dim = shape.num_kv_heads, shape.num_heads, shape.head_dim
        queries = (q[:n].float() * self._scale).index_select(0, decodes.rows)
        queries = queries.view(num_pairs * kvh, self._group, dim)
        partials = self._workspace(num_pairs * kvh, self._group, dim)
        pair_max = torch.empty(num_pairs * kvh, self._group, device=q.device)
        pair_sum = torch.empty_like(pair_max)
        for begin in range(0, num_pairs, self._chunk):
            end = min(begin + self._chunk, num_pairs)
            pairs = slice(begin * kvh, end * kvh)
            blocks = decodes.blocks[begin:end]
            keys = self._gather(self._k_cache[layer], self._gathered_k, blocks)
            scores = torch.bmm(queries[pairs], keys)  # [pairs, group, block_size]
            if begin < num_partial:
                seen_in_part = scores.view(end - begin, heads, -1)[: num_partial - begin]
                seen_in_part.masked_fill_(decodes.hidden[begin:end], float("-inf"))
            torch.amax(scores, dim=-1, out=pair_max[pairs])
            # The exponential is ten times slower where it underflows; e^-80 weighs nothing.
            scores.sub_(pair_max[pairs, :, None]).clamp_(min=-80.0).exp_()
            torch.sum(scores, dim=-1, out=pair_sum[pairs])
            values = self._gather(self._v_cache[layer], self._gathered_v, blocks)
            torch.bmm(scores, values, out=partials[pairs])

        # Bring the pairs of a row, each relative to its own maximum, to the row's.
        maxima = pair_max.view(num_pairs, heads)
        row_max = torch.full((n, heads), float("-inf"), device=q.device).scatter_reduce_(
            0, decodes.rows[:, None].expand(num_pairs, heads), maxima, "amax"
        )
        factors = maxima.sub_(row_max.index_select(0, decodes.rows)).exp_()
        row_sum = torch.zeros(n, heads, device=q.device)
        row_sum.index_add_(0, decodes.rows, pair_sum.view(num_pairs, heads).mul_(factors))
        summed = torch.zeros(n, heads, dim, device=q.device)
        weighted = partials.view(num_pairs, heads, dim).mul_(factors[..., None])
        summed.index_add_(0, decodes.rows, weighted)
        out[:n] = summed.div_(row_sum[..., None]).view(n, heads * dim)

    def _gather(self, cache: Tensor, buffer: Tensor, blocks: Tensor) -> Tensor:
        """Copy `blocks` of a layer into `buffer`; [num_blocks * num_kv_heads, …, …]."""
        piece = buffer[: len(blocks)]
        torch.index_select(cache, 0, blocks, out=piece)
        return piece.view(-1, *piece.shape[2:]).float()

    def _attend_slice(
        self, layer: int, piece: _Slice, q: Tensor, window: int | None
    ) -> Tensor:  # [n_tokens, num_heads * head_dim]
        shape, n_tokens = self._shape, q.shape[0]
        kvh, group, dim = shape.num_kv_heads, self._group, shape.head_dim
        k = self._k_cache[layer].index_select(0, piece.block_ids).permute(1, 2, 0, 3)
        k = k.reshape(kvh, dim, -1).float()  # [num_kv_heads, head_dim, num_keys]
        v = self._v_cache[layer].index_select(0, piece.block_ids).transpose(0, 1)
        v = v.reshape(kvh, -1, dim).float()  # [num_kv_heads, num_keys, head_dim]
        queries = (q.float() * self._scale).view(n_tokens, kvh, group, dim).permute(1, 2, 0, 3)
        out = torch.empty(n_tokens, kvh, group, dim, device=q.device)
        # Counted from the first key that was gathered.
        start = piece.start - piece.first_key
        tile = self._tile(start + n_tokens, window)
        for begin in range(0, n_tokens, tile):
            end = min(begin + tile, n_tokens)
            n, last_key = end - begin, start + end
            # Where the window of the tile's first query begins, maybe before the sequence does.
            seen_from = 0 if window is None else start + begin - window + 1
            first_key = max(seen_from, 0)
            rows = queries[:, :, begin:end].reshape(kvh, group * n, dim)
            scores = torch.bmm(rows, k[:, :, first_key:last_key]).view(kvh, group, n, -1)
            if n > 1:
                # The keys in the middle are seen by all of the tile's queries.
                square = torch.ones(n, n, dtype=torch.bool, device=q.device)
                scores[..., -n:].masked_fill_(square.triu(1), float("-inf"))
                if window is not None and seen_from + n > 1:
                    left = square.tril(seen_from - first_key - 1)
                    scores[..., :n].masked_fill_(left, float("-inf"))
            weights = torch.softmax(scores, dim=-1).view(kvh, group * n, -1)
            attended = torch.bmm(weights, v[:, first_key:last_key])
            out[begin:end] = attended.view(kvh, group, n, dim).permute(2, 0, 1, 3)
        return out.view(n_tokens, -1).to(q.dtype)

    def _tile(self, num_keys: int, window: int | None) -> int:
        """Choose how many queries to compute at once; a tile of n sees up to n + window keys."""
        if window is None:
            return max(16, _TILE_SCORES // (self._shape.num_heads * num_keys))
        longest = max(64, window)
        num_keys = min(num_keys, longest + window)
        return min(longest, max(16, _TILE_SCORES // (self._shape.num_heads * num_keys)))

    def _workspace(self, *shape: int) -> Tensor:
        """Reuse one buffer for all layers and steps: fresh pages cost more than the arithmetic."""
        size = math.prod(shape)
        if self._partials.numel() < size:
            self._partials = torch.empty(size + size // 2, device=self._device)
        return self._partials[:size].view(shape)
