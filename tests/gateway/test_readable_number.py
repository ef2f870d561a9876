"""Sizes as vLLM's users type them."""

from __future__ import annotations

import pytest

from gateway.readable_number import read_number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("4096", 4096),
        ("4k", 4000),
        ("4K", 4096),
        ("25.6k", 25_600),
        ("1m", 1_000_000),
        ("1M", 1 << 20),
        ("2G", 2 << 30),
        ("2t", 2 * 10**12),
        (" 8k ", 8000),
        ("0", 0),
    ],
)
def test_small_letters_are_thousands_and_capitals_are_1024(text: str, number: int) -> None:
    """A unit of 1000 may have a part, as long as the whole is whole."""
    assert read_number(text) == number


@pytest.mark.parametrize(
    "text", ["", "k", "4kk", "4 k", "-4k", "+4", "1.5K", "1.0001k", "1e3", "٤k", "9" * 40, "4Ki"]
)
def test_what_is_no_whole_number_is_refused(text: str) -> None:
    """So is a part of a unit of 1024, of which nobody knows what was meant."""
    with pytest.raises(ValueError, match=r"whole number|unit of 1024"):
        read_number(text)
