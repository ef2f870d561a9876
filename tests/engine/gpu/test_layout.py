"""One buffer holds all of a step's numbers, each where kernels read it best."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.gpu.bucket import Bucket
from engine.gpu.layout import arrays_of, num_words


@given(st.integers(1, 70), st.integers(1, 300), st.integers(0, 20), st.integers(1, 90))
def test_arrays_are_aligned_and_apart(
    num_rows: int, num_tokens: int, num_tiles: int, num_pieces: int
) -> None:
    """Whatever the sizes are, an array begins at 16 bytes, and no two share a word."""
    bucket = Bucket(num_tokens, num_rows, num_tiles, num_pieces)
    words = np.zeros(num_words(bucket), np.int32)
    arrays = arrays_of(words, bucket)
    for field in fields(arrays):
        array = getattr(arrays, field.name)
        assert (array.ctypes.data - words.ctypes.data) % 16 == 0
        array += 1
    assert set(words.tolist()) <= {0, 1}
    assert arrays.query_starts.shape == (num_rows + 1,)
    assert arrays.tiles.shape == (num_tiles, 2)
    assert arrays.piece_rows.shape == (num_pieces,)
