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

**Garbage.** Blocks that no table names are never read. In a row's last block the tail after its
context may hold anything: scores there are overwritten by -inf, and as 0 * NaN is NaN, the values
of a block are cleared when its first token is written.

All arithmetic is float32 whatever the cache's dtype.
"""

from __future__ import annotations

import math

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
        # A few rows are quicker one at a time: fewer operations, and their cost is per operation.
        self._num_decodes = batch.num_decodes if batch.num_decodes > _FEW_ROWS else 0
        self._plan_writes(batch)
        self._plan_decodes(batch)
        self._plan_slices(batch)

    def write_kv(self, layer: int, k: Tensor, v: Tensor) -> None:
        if self._fresh_blocks is not None:
            self._v_cache[layer].index_fill_(0, self._fresh_blocks, 0.0)
        self._k_cache[layer][self._write_blocks, :, :, self._write_offsets] = k
        self._v_cache[layer][self._write_blocks, :, self._write_offsets] = v

    def forward(self, layer: int, q: Tensor) -> Tensor:
        # [num_tokens, num_heads * head_dim]
        out = torch.empty(q.shape[0], q.shape[1] * q.shape[2], dtype=q.dtype, device=q.device)
        if self._num_decodes:
            self._decode(layer, q, out)
        for start, n_tokens, context_len, block_ids in self._slices:
            rows = slice(start, start + n_tokens)
            out[rows] = self._attend_slice(layer, q[rows], context_len, block_ids)
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

    def _plan_decodes(self, batch: AttentionBatch) -> None:
        n, block_size = self._num_decodes, self._shape.block_size
        if not n:
            return
        context_lens = batch.context_lens[:n]
        # Last blocks come first, as only they have a tail to mask; then the full ones.
        num_full = (context_lens - 1) // block_size
        full_rows = np.repeat(np.arange(n), num_full)
        full_columns = np.arange(len(full_rows)) - np.repeat(
            np.cumsum(num_full) - num_full, num_full
        )
        rows = np.concatenate((np.arange(n), full_rows))
        columns = np.concatenate((num_full, full_columns))
        past_end = np.arange(block_size) >= (context_lens - num_full * block_size)[:, None]
        self._pair_rows = self._upload(rows)
        self._pair_blocks = self._upload(batch.block_tables[rows, columns])
        # [num_decodes, 1, block_size]
        self._past_end = torch.from_numpy(past_end).to(self._device)[:, None]

    def _plan_slices(self, batch: AttentionBatch) -> None:
        n, block_size = self._num_decodes, self._shape.block_size
        self._slices: list[tuple[int, int, int, Tensor]] = []
        start = n
        for row in range(n, len(batch.query_lens)):
            n_tokens, context_len = int(batch.query_lens[row]), int(batch.context_lens[row])
            table = batch.block_tables[row, : -(-context_len // block_size)]
            self._slices.append((start, n_tokens, context_len, self._upload(table)))
            start += n_tokens

    def _upload(self, indices: NDArray[np.integer]) -> Tensor:
        return torch.from_numpy(indices.astype(np.int64)).to(self._device)

    def _decode(self, layer: int, q: Tensor, out: Tensor) -> None:
        """Fill the decode rows of `out` from their (row, block) pairs."""
        shape, n, num_pairs = self._shape, self._num_decodes, len(self._pair_rows)
        kvh, heads, dim = shape.num_kv_heads, shape.num_heads, shape.head_dim
        queries = (q[:n].float() * self._scale).index_select(0, self._pair_rows)
        queries = queries.view(num_pairs * kvh, self._group, dim)
        partials = self._workspace(num_pairs * kvh, self._group, dim)
        pair_max = torch.empty(num_pairs * kvh, self._group, device=q.device)
        pair_sum = torch.empty_like(pair_max)
        for begin in range(0, num_pairs, self._chunk):
            end = min(begin + self._chunk, num_pairs)
            pairs = slice(begin * kvh, end * kvh)
            keys = self._gather(self._k_cache[layer], self._gathered_k, begin, end)
            scores = torch.bmm(queries[pairs], keys)  # [pairs, group, block_size]
            if begin < n:
                # The last block of every row is among the first n pairs.
                tails = scores.view(end - begin, heads, -1)[: n - begin]
                tails.masked_fill_(self._past_end[begin:end], float("-inf"))
            torch.amax(scores, dim=-1, out=pair_max[pairs])
            # The exponential is ten times slower where it underflows; e^-80 weighs nothing.
            scores.sub_(pair_max[pairs, :, None]).clamp_(min=-80.0).exp_()
            torch.sum(scores, dim=-1, out=pair_sum[pairs])
            values = self._gather(self._v_cache[layer], self._gathered_v, begin, end)
            torch.bmm(scores, values, out=partials[pairs])

        # Bring the pairs of a row, each relative to its own maximum, to the row's.
        maxima = pair_max.view(num_pairs, heads)
        row_max = torch.full((n, heads), float("-inf"), device=q.device).scatter_reduce_(
            0, self._pair_rows[:, None].expand(num_pairs, heads), maxima, "amax"
        )
        factors = maxima.sub_(row_max.index_select(0, self._pair_rows)).exp_()
        row_sum = torch.zeros(n, heads, device=q.device)
        row_sum.index_add_(0, self._pair_rows, pair_sum.view(num_pairs, heads).mul_(factors))
        summed = torch.zeros(n, heads, dim, device=q.device)
        weighted = partials.view(num_pairs, heads, dim).mul_(factors[..., None])
        summed.index_add_(0, self._pair_rows, weighted)
        out[:n] = summed.div_(row_sum[..., None]).view(n, heads * dim)

    def _gather(self, cache: Tensor, buffer: Tensor, begin: int, end: int) -> Tensor:
        """Copy the blocks of pairs [begin, end) into `buffer`; [pairs * num_kv_heads, …, …]."""
        piece = buffer[: end - begin]
        torch.index_select(cache, 0, self._pair_blocks[begin:end], out=piece)
        return piece.view(-1, *piece.shape[2:]).float()

    def _attend_slice(
        self, layer: int, q: Tensor, context_len: int, block_ids: Tensor
    ) -> Tensor:  # [n_tokens, num_heads * head_dim]
        shape, n_tokens = self._shape, q.shape[0]
        kvh, group, dim = shape.num_kv_heads, self._group, shape.head_dim
        k = self._k_cache[layer].index_select(0, block_ids).permute(1, 2, 0, 3)
        k = k.reshape(kvh, dim, -1).float()  # [num_kv_heads, head_dim, num_keys]
        v = self._v_cache[layer].index_select(0, block_ids).transpose(0, 1)
        v = v.reshape(kvh, -1, dim).float()  # [num_kv_heads, num_keys, head_dim]
        queries = (q.float() * self._scale).view(n_tokens, kvh, group, dim).permute(1, 2, 0, 3)
        out = torch.empty(n_tokens, kvh, group, dim, device=q.device)
        start = context_len - n_tokens
        tile = max(16, _TILE_SCORES // (shape.num_heads * context_len))
        for begin in range(0, n_tokens, tile):
            end = min(begin + tile, n_tokens)
            n, num_keys = end - begin, start + end
            rows = queries[:, :, begin:end].reshape(kvh, group * n, dim)
            scores = torch.bmm(rows, k[:, :, :num_keys]).view(kvh, group, n, num_keys)
            if n > 1:
                # Keys before the tile's first query are seen by all of its queries.
                future = torch.ones(n, n, dtype=torch.bool, device=q.device).triu(1)
                scores[..., start + begin :].masked_fill_(future, float("-inf"))
            weights = torch.softmax(scores, dim=-1).view(kvh, group * n, num_keys)
            attended = torch.bmm(weights, v[:, :num_keys])
            out[begin:end] = attended.view(kvh, group, n, dim).permute(2, 0, 1, 3)
        return out.view(n_tokens, -1).to(q.dtype)

    def _workspace(self, *shape: int) -> Tensor:
        """Reuse one buffer for all layers and steps: fresh pages cost more than the arithmetic."""
        size = math.prod(shape)
        if self._partials.numel() < size:
            self._partials = torch.empty(size + size // 2, device=self._device)
        return self._partials[:size].view(shape)
