"""Paged attention against a dense computation, over ragged batches and poisoned memory.

The suite uses the backend protocol alone, so that each backend can be put to it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.cpu.attention import ReferenceAttention
from engine.models.attention import AttentionBackend, AttentionBatch, KVCacheShape
from engine.native.attention import NativeAttention

LAYER = 1
NUM_BLOCKS = 96


@dataclass
class Row:
    """One sequence: its keys, values and queries by position, and its blocks."""

    k: Tensor  # [num_tokens, num_kv_heads, head_dim]
    v: Tensor
    q: Tensor  # [num_tokens, num_heads, head_dim]
    blocks: list[int]


class Bench:
    """Hold a backend and sequences with random content, and step them like an engine would."""

    make_backend: Callable[[KVCacheShape], AttentionBackend]

    def __init__(
        self, *, block_size: int, group: int, head_dim: int = 16, poison: bool = True
    ) -> None:
        self.shape = KVCacheShape(
            num_layers=2,
            num_blocks=NUM_BLOCKS,
            block_size=block_size,
            num_heads=2 * group,
            num_kv_heads=2,
            head_dim=head_dim,
        )
        self.backend = Bench.make_backend(self.shape)
        self.generator = torch.Generator().manual_seed(5)
        self.free = list(range(NUM_BLOCKS))
        random.Random(5).shuffle(self.free)
        if poison:
            self._poison()

    def row(self, num_tokens: int) -> Row:
        shape = self.shape

        def noise(heads: int) -> Tensor:
            return torch.randn(num_tokens, heads, shape.head_dim, generator=self.generator)

        num_blocks = -(-num_tokens // shape.block_size)
        blocks = [self.free.pop() for _ in range(num_blocks)]
        kv_heads = shape.num_kv_heads
        return Row(noise(kv_heads), noise(kv_heads), noise(shape.num_heads), blocks)

    def step(
        self,
        parts: Sequence[tuple[Row, int, int]],
        *,
        num_decodes: int = 0,
        window: int | None = None,
    ) -> Tensor:
        """Compute positions [start, end) of each row; [num_tokens, num_heads * head_dim]."""
        self.write(parts, num_decodes=num_decodes, window=window)
        q = torch.cat([row.q[a:b] for row, a, b in parts])
        return self.backend.forward(LAYER, q, window=window)

    def write(
        self, parts: Sequence[tuple[Row, int, int]], *, num_decodes: int, window: int | None
    ) -> None:
        """Plan the step and store its keys and values, in both layers."""
        width = max(len(row.blocks) for row, _, _ in parts) + 2
        # What follows a table's own entries is garbage that must not be followed, nor may what
        # lies before every window: these blocks may belong to another sequence by now.
        tables = np.full((len(parts), width), 2**30, np.int32)
        for i, (row, start, _) in enumerate(parts):
            first = 0 if window is None else max(0, start - window + 1) // self.shape.block_size
            tables[i, first : len(row.blocks)] = row.blocks[first:]
        self.backend.plan(
            AttentionBatch(
                num_decodes=num_decodes,
                positions=np.concatenate([np.arange(a, b) for _, a, b in parts]),
                query_lens=np.array([b - a for _, a, b in parts], np.int32),
                context_lens=np.array([b for _, _, b in parts], np.int32),
                block_tables=tables,
            )
        )
        k = torch.cat([row.k[a:b] for row, a, b in parts])
        v = torch.cat([row.v[a:b] for row, a, b in parts])
        for layer in range(self.shape.num_layers):
            self.backend.write_kv(layer, k, v)

    def _poison(self) -> None:
        """Fill every block with NaN, as a sequence that went wrong would leave them."""
        n = NUM_BLOCKS * self.shape.block_size
        nan = torch.full((n, self.shape.num_kv_heads, self.shape.head_dim), float("nan"))
        everything = Row(nan, nan, torch.zeros(n, self.shape.num_heads, self.shape.head_dim), [])
        everything.blocks = list(range(NUM_BLOCKS))
        for begin in range(0, n - 256, 256):
            self.write([(everything, begin, begin + 256)], num_decodes=0, window=None)
        # The last of it is attended to as well, and poisons what a step computes in.
        self.step([(everything, n - 256, n)])


def make_reference(shape: KVCacheShape) -> AttentionBackend:
    return ReferenceAttention(shape, dtype=torch.float32, device=torch.device("cpu"))


def make_native(shape: KVCacheShape) -> AttentionBackend:
    return NativeAttention(shape, dtype=torch.float32)


@pytest.fixture(autouse=True, params=["torch", "torch-gathering", "native"])
def backend(
    request: pytest.FixtureRequest, native_library: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Put each backend to the suite, torch's with and without a copy of what decodes.

    Without a compiler there is only torch's.
    """
    compiled = request.param == "native" and native_library
    make_backend = make_native if compiled else make_reference
    monkeypatch.setattr(Bench, "make_backend", staticmethod(make_backend), raising=False)
    share = 0.0 if request.param == "torch-gathering" else 4.0
    monkeypatch.setattr("engine.cpu.attention._COPY_SHARE", share)


def dense(row: Row, start: int, end: int, window: int | None = None) -> Tensor:
    """Attend with every key and value at hand; [end - start, num_heads * head_dim]."""
    group = row.q.shape[1] // row.k.shape[1]
    k, v = (x[:end].repeat_interleave(group, dim=1).transpose(0, 1) for x in (row.k, row.v))
    scores = row.q[start:end].transpose(0, 1) @ k.transpose(1, 2) / row.q.shape[-1] ** 0.5
    keys, queries = torch.arange(end), torch.arange(start, end)[:, None]
    hidden = (keys > queries) | (keys <= queries - (window or end))
    weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)
    return (weights @ v).transpose(0, 1).reshape(end - start, -1)


def check(
    bench: Bench,
    parts: Sequence[tuple[Row, int, int]],
    *,
    num_decodes: int = 0,
    window: int | None = None,
) -> None:
    out = bench.step(parts, num_decodes=num_decodes, window=window)
    expected = torch.cat([dense(*part, window) for part in parts])
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("group", [1, 2, 4, 7])
@pytest.mark.parametrize("block_size", [16, 32, 64])
def test_a_mixed_batch_equals_dense_attention(block_size: int, group: int) -> None:
    """Decodes and slices of ragged lengths in one batch, amid NaN blocks, attend as if alone."""
    bench = Bench(block_size=block_size, group=group)
    decoding = [bench.row(n) for n in (1, 2, 15, 16, 17, 33, 64, 65, 255)]
    filled = [(row, 0, len(row.k) - 1) for row in decoding if len(row.k) > 1]
    check(bench, filled)
    fresh, resumed = bench.row(40), bench.row(90)
    check(bench, [(resumed, 0, 50)])
    parts = [(row, len(row.k) - 1, len(row.k)) for row in decoding]
    parts += [(fresh, 0, 40), (resumed, 50, 90)]
    check(bench, parts, num_decodes=len(decoding))


@pytest.mark.parametrize("num_rows", [1, 2, 3, 5])
def test_rows_decode_step_by_step(num_rows: int) -> None:
    """Rows that grow token by token across block edges equal dense attention at each step."""
    bench = Bench(block_size=16, group=2)
    rows = [bench.row(40) for _ in range(num_rows)]
    check(bench, [(row, 0, 10 + i) for i, row in enumerate(rows)])
    for step in range(24):
        parts = [(row, 10 + i + step, 11 + i + step) for i, row in enumerate(rows)]
        check(bench, parts, num_decodes=num_rows)


@pytest.mark.parametrize("chunk", [1, 7, 16, 17])
def test_chunked_prefill_equals_dense_attention(chunk: int) -> None:
    """A prompt computed in chunks sees its own earlier chunks through the block table."""
    bench = Bench(block_size=16, group=2)
    row = bench.row(70)
    for start in range(0, 70, chunk):
        check(bench, [(row, start, min(start + chunk, 70))])


def test_rows_share_prefix_blocks() -> None:
    """Two rows whose tables begin with the same blocks read the same prefix."""
    bench = Bench(block_size=16, group=2)
    owner, guest = bench.row(48), bench.row(48)
    guest.k[:32], guest.v[:32] = owner.k[:32], owner.v[:32]
    guest.blocks[:2] = owner.blocks[:2]
    check(bench, [(owner, 0, 47)])
    check(bench, [(guest, 32, 47)])
    third = bench.row(5)
    check(bench, [(third, 0, 4)])
    check(bench, [(owner, 47, 48), (guest, 47, 48), (third, 4, 5)], num_decodes=3)


def test_a_row_of_nan_spoils_only_itself() -> None:
    """One row's NaN stays in its own output, in decodes and in slices."""
    bench = Bench(block_size=16, group=2)
    rows = [bench.row(n) for n in (20, 21, 22, 23)]
    rows[1].k[5] = float("nan")
    for parts, num_decodes in (
        ([(row, 0, len(row.k) - 1) for row in rows], 0),
        ([(row, len(row.k) - 1, len(row.k)) for row in rows], 4),
    ):
        out = bench.step(parts, num_decodes=num_decodes)
        ends = np.cumsum([b - a for _, a, b in parts])
        for i, (row, start, end) in enumerate(parts):
            mine = out[ends[i] - (end - start) : ends[i]]
            if i == 1:
                assert mine[-1].isnan().all()
            else:
                torch.testing.assert_close(mine, dense(row, start, end), rtol=1e-5, atol=1e-5)


def test_long_slices_are_computed_in_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice that is cut into tiles of queries equals dense attention."""
    monkeypatch.setattr("engine.cpu.attention._TILE_SCORES", 1)
    bench = Bench(block_size=16, group=2)
    row = bench.row(150)
    check(bench, [(row, 0, 33)])
    check(bench, [(row, 33, 150)])


def test_large_scores_do_not_overflow() -> None:
    """Scores far beyond what exp can hold still give the softmax."""
    bench = Bench(block_size=16, group=2)
    rows = [bench.row(40) for _ in range(4)]
    for row in rows:
        row.k *= 300
    check(bench, [(row, 0, 39) for row in rows])
    check(bench, [(row, 39, 40) for row in rows], num_decodes=4)


WINDOWS = [1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 1000]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("block_size", [16, 32, 64])
def test_a_windowed_batch_equals_dense_attention(block_size: int, window: int) -> None:
    """With a sliding window, decodes and slices see its tokens alone; no block before is read."""
    bench = Bench(block_size=block_size, group=2)
    lengths = (1, 2, 15, 16, 17, window, window + 1, window + block_size, 130)
    decoding = [bench.row(min(n, 150)) for n in lengths]
    fresh, resumed = bench.row(100), bench.row(170)
    for row in (*decoding, resumed):
        if len(row.k) > 1:
            check(bench, [(row, 0, len(row.k) - (60 if row is resumed else 1))], window=window)
    parts = [(row, len(row.k) - 1, len(row.k)) for row in decoding]
    parts += [(fresh, 0, 100), (resumed, 110, 170)]
    check(bench, parts, num_decodes=len(decoding), window=window)


@pytest.mark.parametrize("window", [7, 16, 24])
@pytest.mark.parametrize("num_rows", [1, 3])
def test_a_window_slides_over_the_edges_of_blocks(num_rows: int, window: int) -> None:
    """Rows that grow token by token drop their oldest token at each step, then its block."""
    bench = Bench(block_size=16, group=2)
    rows = [bench.row(70) for _ in range(num_rows)]
    check(bench, [(row, 0, 1 + i) for i, row in enumerate(rows)], window=window)
    for step in range(1, 68):
        parts = [(row, i + step, 1 + i + step) for i, row in enumerate(rows)]
        check(bench, parts, num_decodes=num_rows, window=window)


@pytest.mark.parametrize("window", [1, 16, 20, 33])
@pytest.mark.parametrize("chunk", [1, 7, 16, 17])
def test_chunked_prefill_under_a_window(chunk: int, window: int) -> None:
    """A prompt computed in chunks sees the part of its earlier chunks that is in the window."""
    bench = Bench(block_size=16, group=2)
    row = bench.row(70)
    for start in range(0, 70, chunk):
        check(bench, [(row, start, min(start + chunk, 70))], window=window)


@pytest.mark.parametrize("window", [1, 15, 40, 64, 90])
def test_tiles_under_a_window(monkeypatch: pytest.MonkeyPatch, window: int) -> None:
    """A slice that is cut into tiles, each with keys of its own, equals dense attention."""
    monkeypatch.setattr("engine.cpu.attention._TILE_SCORES", 1)
    bench = Bench(block_size=16, group=2)
    row = bench.row(150)
    check(bench, [(row, 0, 33)], window=window)
    check(bench, [(row, 33, 150)], window=window)


def test_layers_of_one_step_have_windows_of_their_own() -> None:
    """One plan serves layers with and without a window."""
    bench = Bench(block_size=16, group=2)
    rows = [bench.row(n) for n in (30, 45, 80, 90)]
    check(bench, [(row, 0, len(row.k) - 1) for row in rows])
    parts = [(row, len(row.k) - 1, len(row.k)) for row in rows]
    bench.write(parts, num_decodes=3, window=None)
    q = torch.cat([row.q[a:b] for row, a, b in parts])
    for layer, window in ((0, 20), (1, None), (0, 33), (1, 20)):
        out = bench.backend.forward(layer, q, window=window)
        expected = torch.cat([dense(*part, window) for part in parts])
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


def test_nan_outside_the_window_spoils_nothing() -> None:
    """Blocks of a row that have left its window may hold anything, NaN included."""
    bench = Bench(block_size=16, group=2)
    rows = [bench.row(n) for n in (60, 64, 65, 100)]
    for row in rows:
        check(bench, [(row, 0, len(row.k) - 1)], window=20)
    for row in rows:
        # The blocks before the one in which the newest token's window begins.
        spoilt = (len(row.k) - 20) // 16 * 16
        nan = torch.full_like(row.k[:spoilt], float("nan"))
        bench.step([(Row(nan, nan, row.q[:spoilt], row.blocks), 0, spoilt)])
    parts = [(row, len(row.k) - 1, len(row.k)) for row in rows]
    check(bench, parts, num_decodes=4, window=20)
    check(bench, parts, window=20)


@pytest.mark.parametrize("window", [None, 30])
def test_rows_come_and_go_in_any_order(window: int | None) -> None:
    """Whatever rows a step decodes, new ones, back after a pause, in another order, are right."""
    bench = Bench(block_size=16, group=2)
    draw = random.Random(3)
    rows = [bench.row(70) for _ in range(12)]
    lens = [draw.randrange(1, 34) for _ in rows]
    check(bench, [(row, 0, n) for row, n in zip(rows, lens, strict=True)], window=window)
    decoding = list(range(4))
    for _ in range(36):
        if draw.random() < 0.5:
            decoding = draw.sample(range(12), draw.randrange(1, 13))
        parts = [(rows[i], lens[i], lens[i] + 1) for i in decoding]
        check(bench, parts, num_decodes=len(parts), window=window)
        for i in decoding:
            lens[i] += 1


def test_a_block_that_changes_hands_is_read_anew() -> None:
    """A row that takes over another's blocks and decodes where that one did sees its own tokens."""
    bench = Bench(block_size=16, group=2)
    first, second, other = bench.row(40), bench.row(40), bench.row(40)
    second.blocks = first.blocks
    check(bench, [(first, 0, 20), (other, 0, 20)])
    for n in (20, 21):
        check(bench, [(first, n, n + 1), (other, n, n + 1)], num_decodes=2)
    check(bench, [(other, 22, 23), (second, 0, 22)], num_decodes=1)
    for n in (22, 23):
        check(bench, [(second, n, n + 1), (other, n + 1, n + 2)], num_decodes=2)


def test_rows_of_very_different_lengths_decode() -> None:
    """Long and short rows in one batch equal dense attention, step by step."""
    bench = Bench(block_size=16, group=2)
    rows = [bench.row(n) for n in (600, 20, 20, 20, 300, 20, 20, 20)]
    check(bench, [(row, 0, len(row.k) - 3) for row in rows])
    for left in (3, 2, 1):
        parts = [(row, len(row.k) - left, len(row.k) - left + 1) for row in rows]
        check(bench, parts, num_decodes=len(rows))


def test_a_sequence_of_nan_leaves_nothing_behind() -> None:
    """A row that takes the place of one with NaN in it, and grows to its length, stays clean."""
    bench = Bench(block_size=16, group=2, poison=False)
    spoilt, kept, fresh = bench.row(60), bench.row(80), bench.row(60)
    spoilt.k[:], spoilt.v[:] = float("nan"), float("nan")
    bench.step([(spoilt, 0, 50), (kept, 0, 50), (fresh, 0, 20)])
    for n in range(50, 58):
        bench.step([(spoilt, n, n + 1), (kept, n, n + 1)], num_decodes=2)
    for n in range(58, 70):
        check(bench, [(fresh, n - 38, n - 37), (kept, n, n + 1)], num_decodes=2)
