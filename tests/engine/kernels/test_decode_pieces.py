"""Contexts are parted so that no row waits for the longest."""

from __future__ import annotations

import numpy as np
import pytest

from engine.kernels.decode_pieces import count_pieces, most_pieces


def pieces(*num_keys: int) -> list[int]:
    return count_pieces(np.array(num_keys, np.int32), most_pieces(len(num_keys))).tolist()


@pytest.mark.parametrize("num_rows", [0, 1, 2, 7, 64, 300])
def test_there_is_room_and_nobody_is_left_out(num_rows: int) -> None:
    """Any rows fit: those that read have a piece at least, the others have none."""
    generator = np.random.default_rng(num_rows)
    for _ in range(200):
        longest = generator.choice([1, 64, 65, 1000, 70_000])
        num_keys = generator.integers(0, longest, num_rows, endpoint=True).tolist()
        counts = pieces(*num_keys)
        assert sum(counts) <= most_pieces(num_rows)
        assert [n > 0 for n in counts] == [n > 0 for n in num_keys]


@pytest.mark.parametrize("num_rows", [1, 2, 7, 33, 64])
def test_few_rows_use_the_room(num_rows: int) -> None:
    """Long rows take a third of the pieces at least, and short ones no more than is worth it."""
    for num_keys in (1, 63, 64, 65, 700, 1024, 5000, 70_000):
        counts = pieces(*[num_keys] * num_rows)
        most = most_pieces(num_rows)
        assert sum(counts) >= min(most / 3, num_rows * num_keys / 64)
        assert max(counts) <= -(-num_keys // 64)


def test_a_long_row_is_read_by_many() -> None:
    """Beside 255 rows of a thousand keys, one of 60,000 is read in shares of about their size."""
    counts = pieces(60_000, *[1000] * 255)
    assert counts[0] >= 30
    assert counts[1:] == [1] * 255


def test_equal_rows_stay_whole_where_they_fill_a_gpu() -> None:
    """256 rows are programs enough."""
    assert pieces(*[1000] * 256) == [1] * 256
