"""Ragged batches over a paged cache in which all that nobody may read is poisoned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.kernels.operations import PREFILL_QUERIES, StepInputs

NAN = float("nan")


@dataclass(frozen=True, kw_only=True)
class Heads:
    """Say what attention is computed over."""

    group: int = 2
    num_kv_heads: int = 1
    head_dim: int = 64
    block_size: int = 16
    window: int | None = None


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Hold what `Operations.attend` takes, on some device, in float32; and which tokens are real.

    `rows`: context length and tokens of each.
    """

    heads: Heads
    rows: Sequence[tuple[int, int]]
    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    inputs: StepInputs
    num_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_tokens", sum(tokens for _, tokens in self.rows))


def make_batch(
    heads: Heads,
    rows: Sequence[tuple[int, int]],
    device: torch.device,
    *,
    padding: int = 2,
    num_pieces: int = 1,
) -> Batch:
    """Fill the cache with noise where a query sees it, and with NaN elsewhere.

    Slots and blocks are in random order; tables name no block beyond a context. `padding` is how
    many rows, tokens, pieces and tiles pad; `num_pieces`, in how many a row of one token is read.
    """
    generator = torch.Generator().manual_seed(len(rows) + heads.group)
    block_size, num_rows = heads.block_size, len(rows)
    blocks_of = [-(-context // block_size) for context, _ in rows]
    ids = torch.randperm(sum(blocks_of) + 3, generator=generator)
    slots = torch.randperm(num_rows + 2, generator=generator)[:num_rows]
    tables = torch.full((num_rows + 3, max(blocks_of) + 1), 1 << 30, dtype=torch.int32)
    sizes = (len(ids) * block_size, heads.num_kv_heads, heads.head_dim)
    k_cache, v_cache = torch.full(sizes, NAN), torch.full(sizes, NAN)
    for (context, tokens), slot, mine in zip(
        rows, slots, ids[: sum(blocks_of)].split(blocks_of), strict=True
    ):
        tables[slot, : len(mine)] = mine
        first_seen = max(context - tokens - (heads.window or context) + 1, 0)
        seen = torch.arange(first_seen, context)
        places = mine[seen // block_size] * block_size + seen % block_size
        for cache in (k_cache, v_cache):
            cache[places] = torch.randn(len(seen), *sizes[1:], generator=generator)
    num_tokens = sum(tokens for _, tokens in rows)
    # Queries are part of a wider buffer; so are those of tokens that pad.
    num_heads = heads.group * heads.num_kv_heads
    qkv = torch.full((num_tokens + padding, num_heads + 2 * heads.num_kv_heads, sizes[2]), NAN)
    qkv[:num_tokens, :num_heads] = torch.randn(num_tokens, num_heads, sizes[2], generator=generator)
    return Batch(
        heads=heads,
        rows=rows,
        q=qkv.to(device)[:, :num_heads],
        k_cache=k_cache.to(device),
        v_cache=v_cache.to(device),
        inputs=_make_inputs(rows, slots, tables, device, padding, num_pieces),
    )


def _make_inputs(
    rows: Sequence[tuple[int, int]],
    slots: Tensor,
    tables: Tensor,
    device: torch.device,
    padding: int,
    num_pieces: int,
) -> StepInputs:
    def upload(values: Sequence[object]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    starts, token_rows, positions, tiles = [0], [], [], []
    piece_starts, piece_rows = [0], []
    for row, (context, tokens) in enumerate(rows):
        starts.append(starts[-1] + tokens)
        token_rows += [row] * tokens
        positions += range(context - tokens, context)
        piece_rows += [row] * num_pieces * (tokens == 1)
        piece_starts.append(len(piece_rows))
        if tokens > 1:
            tiles += [(row, first) for first in range(0, tokens, PREFILL_QUERIES)]
    return StepInputs(
        slots=upload(slots.tolist() + [len(tables) - 1] * padding),
        query_starts=upload(starts + starts[-1:] * padding),
        context_lens=upload([context for context, _ in rows] + [0] * padding),
        token_rows=upload(token_rows + [-1] * padding),
        positions=upload(positions + [0] * padding),
        tiles=upload(tiles + [(-1, -1)] * padding) if tiles else None,
        piece_rows=upload(piece_rows + [-1] * padding),
        piece_starts=upload(piece_starts + piece_starts[-1:] * padding),
        block_tables=tables.to(device),
        # Attention reads none of these.
        block_columns=upload([]),
        new_blocks=upload([]),
        tokens=upload([]),
    )
