"""Every step fits a size that was captured, or is larger than all of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.gpu.bucket import Bucket, decode_buckets, mixed_buckets
from engine.kernels.decode_pieces import most_pieces
from engine.kernels.operations import PREFILL_QUERIES

WAVE = 49


@given(st.integers(1, 600), st.data())
def test_decodes_are_padded_by_little(max_num_seqs: int, data: st.DataObject) -> None:
    """Any number of rows up to 512 fits, and at most doubles, or gains fifteen."""
    buckets = decode_buckets(max_num_seqs, WAVE)
    assert buckets == sorted(set(buckets))
    num_rows = data.draw(st.integers(1, min(max_num_seqs, 512)))
    chosen = next(one for one in buckets if one.holds(Bucket(num_rows, num_rows)))
    assert chosen.num_rows <= max_num_seqs
    assert chosen.num_rows <= max(2 * num_rows, num_rows + 15)
    assert chosen.num_pieces == most_pieces(chosen.num_rows, WAVE)


@given(st.integers(1, 512), st.lists(st.integers(1, 700), min_size=1, max_size=40))
def test_slices_fit_with_their_tiles(max_num_seqs: int, lens: list[int]) -> None:
    """However the tokens of a step are cut into rows, a size that has the tokens has the tiles."""
    lens = lens[:max_num_seqs]
    tiles = sum(-(-n // PREFILL_QUERIES) for n in lens if n > 1)
    step = Bucket(sum(lens), len(lens), tiles)
    buckets = mixed_buckets(max_num_seqs, 2048, WAVE)
    if step.num_tokens <= 2048 and tiles:
        assert any(one.holds(step) for one in buckets)
    assert not any(one.holds(step) for one in decode_buckets(max_num_seqs, WAVE)) or not tiles


def test_a_small_budget_has_no_mixed_sizes() -> None:
    """What no step can have is not captured."""
    assert mixed_buckets(8, 100, WAVE) == []
    assert {one.num_tokens for one in mixed_buckets(8, 600, WAVE)} == {128, 256, 384, 512}


@given(st.integers(1, 2048), st.integers(1, 256))
def test_slices_are_padded_by_little(num_tokens: int, num_rows: int) -> None:
    """Up to 2,048 tokens a step computes at most 127 for nobody, or what 128 leave it."""
    num_rows = min(num_rows, num_tokens)
    tiles = -(-(num_tokens - num_rows + 1) // PREFILL_QUERIES)
    step = Bucket(num_tokens, num_rows, tiles)
    chosen = next(one for one in mixed_buckets(256, 2048, WAVE) if one.holds(step))
    assert chosen.num_tokens < max(num_tokens + 128, 129)
    assert chosen.num_pieces == most_pieces(chosen.num_rows, WAVE)


def test_few_slices_leave_few_tiles_empty() -> None:
    """A step of one long slice has tiles for few more, alone and beside many that decode."""
    for num_decodes in (0, 200):
        step = Bucket(1800 + num_decodes, 1 + num_decodes, -(-1800 // PREFILL_QUERIES))
        chosen = next(one for one in mixed_buckets(256, 4096, WAVE) if one.holds(step))
        assert chosen.num_tiles <= step.num_tiles + 20
