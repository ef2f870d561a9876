"""Contexts are parted so that no row waits for the longest, and no wave of programs for a few."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
import pytest

from engine.kernels.decode_pieces import count_pieces, most_pieces, wave_of

# Eight key heads, three or four programs for each multiprocessor of an H200; four heads; one.
WAVES = (49, 66, 99, 396)
# What a program costs beside its keys, and the keys of a tile.
PROGRAM, TILE = 64, 64


def pieces(num_keys: Sequence[int], wave: int = 66) -> list[int]:
    room = most_pieces(len(num_keys), wave)
    return count_pieces(np.array(num_keys, np.int32), room, wave).tolist()


def time_of(num_keys: Sequence[int], counts: Sequence[int], wave: int) -> int:
    """Run the pieces as a device does: the next one where a program has ended first; in keys."""
    free = [0] * wave
    end = 0
    for keys, count in zip(num_keys, counts, strict=True):
        tiles = -(-keys // TILE)
        share = -(-tiles // max(count, 1)) * TILE
        for piece in range(count):
            own = min(max(keys - piece * share, 0), share)
            done = heapq.heappop(free) + own + PROGRAM
            heapq.heappush(free, done)
            end = max(end, done)
    return end


@pytest.mark.parametrize("num_rows", [0, 1, 2, 7, 64, 300])
def test_there_is_room_and_nobody_is_left_out(num_rows: int) -> None:
    """Any rows fit: those that read have a piece at least, the others have none."""
    generator = np.random.default_rng(num_rows)
    for wave in WAVES:
        for _ in range(50):
            longest = generator.choice([1, 64, 65, 1000, 70_000])
            num_keys = generator.integers(0, longest, num_rows, endpoint=True).tolist()
            counts = pieces(num_keys, wave)
            assert sum(counts) <= most_pieces(num_rows, wave)
            assert [n > 0 for n in counts] == [n > 0 for n in num_keys]


def test_few_rows_leave_no_program_without_work() -> None:
    """One long row, or eight, are read by as many programs as run at once, and no more wait."""
    for num_rows in (1, 2, 4, 8):
        counts = pieces([8192] * num_rows)
        assert sum(counts) >= 60
        assert most_pieces(num_rows, 66) == 66


def test_a_piece_is_worth_a_program() -> None:
    """No row is read in more pieces than it has tiles."""
    for num_keys in (1, 63, 64, 65, 700, 1024, 5000, 70_000):
        assert max(pieces([num_keys] * 3)) <= -(-num_keys // TILE)


def test_a_long_row_is_read_by_many() -> None:
    """Beside 255 rows of a thousand keys, one of 60,000 is read in shares of about their size."""
    counts = pieces([60_000, *[1000] * 255])
    assert counts[0] >= 30
    assert max(counts[1:]) <= 2


def test_equal_rows_stay_whole_where_they_fill_waves() -> None:
    """Of 256 rows nearly four waves are made, and of 66 one."""
    assert pieces([1000] * 256) == [1] * 256
    assert pieces([1000] * 66) == [1] * 66


@pytest.mark.parametrize("wave", WAVES)
def test_no_wave_waits_for_a_few(wave: int) -> None:
    """Any number of equal rows takes little longer than if programs had shared all keys evenly."""
    for num_rows in range(1, 257):
        num_keys = [4096] * num_rows
        found = time_of(num_keys, pieces(num_keys, wave), wave)
        ideal = sum(num_keys) / wave
        # The keys of one tile cannot be shared, and every wave has its programs.
        assert found <= 1.3 * ideal + 2 * (TILE + PROGRAM)


def test_ragged_rows_end_nearly_together() -> None:
    """Rows of an eighth to twice the mean take at most two fifths longer than if shared evenly."""
    generator = np.random.default_rng(0)
    for wave in WAVES:
        for num_rows in (16, 64, 96, 128, 160, 200, 256):
            num_keys = generator.integers(512, 7680, num_rows).tolist()
            found = time_of(num_keys, pieces(num_keys, wave), wave)
            assert found <= 1.4 * sum(num_keys) / wave + 2 * (TILE + PROGRAM)


def test_a_wave_is_of_the_heads_that_a_device_holds() -> None:
    """Half of the key heads leave room for twice the pieces."""
    assert wave_of(132, 4, 8) == 66
    assert wave_of(132, 4, 4) == 132
    assert wave_of(1, 2, 8) == 1
