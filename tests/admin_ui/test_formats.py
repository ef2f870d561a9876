"""How numbers read: few digits, exact units, and a dash for what is not known."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admin_ui import formats


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (9_999, "9,999"),
        (10_000, "10.0k"),
        (12_345, "12.3k"),
        (99_949, "99.9k"),
        (99_951, "100k"),
        (999_499, "999k"),
        (999_500, "1.00M"),
        (4_560_000, "4.56M"),
        (1_200_000_000, "1.20B"),
        (None, "—"),
    ],
)
def test_tokens(value: int | None, text: str) -> None:
    """Tokens have at most four digits, and none below a thousandth of what they say."""
    assert formats.tokens(value) == text


@given(st.integers(0, 10**12))
def test_tokens_say_within_half_a_percent_what_they_are(value: int) -> None:
    """However large, a number of tokens is told to half a percent."""
    text = formats.tokens(value)
    unit = {"k": 1e3, "M": 1e6, "B": 1e9}.get(text[-1], 1)
    told = float(text.rstrip("kMB").replace(",", "")) * unit
    assert abs(told - value) <= 0.005 * max(value, 1)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 ms"),
        (0.0008, "0.8 ms"),
        (0.123, "123 ms"),
        (0.9996, "1.00 s"),
        (1.234, "1.23 s"),
        (59.996, "1 m 00 s"),
        (125, "2 m 05 s"),
        (7_500, "2 h 05 m"),
        (300_000, "3 d 11 h"),
        (None, "—"),
    ],
)
def test_times(value: float | None, text: str) -> None:
    """Times are in the unit that people say them in."""
    assert formats.seconds(value) == text


def test_times_of_few_samples_say_how_few() -> None:
    """Without a sample there is no time, and of fewer than twenty the number is told."""
    assert formats.sampled_seconds(None, 0) == "n/a"
    assert formats.sampled_seconds(0.2, 3) == "200 ms (n=3)"
    assert formats.sampled_seconds(0.2, 20) == "200 ms"


@pytest.mark.parametrize(
    ("nano", "text"),
    [
        (0, "$0.00"),
        (1, "<$0.0001"),
        (12_300_000, "$0.0123"),
        (12_340_000_000, "$12.34"),
        (-1_500_000_000_000, "−$1,500.00"),
        (None, "—"),
    ],
)
def test_money(nano: int | None, text: str) -> None:
    """Money is never in scientific notation, and never a false zero."""
    assert formats.money(nano) == text


def test_prices_have_cents() -> None:
    """A price has two digits behind the point at least, and none of its digits is cut off."""
    prices = [formats.price(text) for text in ("0.1", "2", "0.05", "1.2345")]
    assert prices == ["$0.10", "$2.00", "$0.05", "$1.2345"]


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0.0 %"), (0.29, "29.0 %"), (0.9997, "99.9 %"), (1.0, "100 %"), (None, "—")],
)
def test_percents(share: float | None, text: str) -> None:
    """A percent is cut off, so that only what is whole reads 100."""
    assert formats.percent(share) == text


def test_moments_name_their_zone() -> None:
    """A moment is in UTC and says so, wherever it was told."""
    at = datetime(2026, 11, 24, 1, 30, tzinfo=UTC)
    assert formats.moment(at) == "2026-11-24 01:30:00 UTC"
    assert formats.moment(at.astimezone()) == "2026-11-24 01:30:00 UTC"
    assert formats.moment(None) == "—"


@pytest.mark.parametrize(
    ("passed", "text"),
    [
        (timedelta(seconds=1), "now"),
        (timedelta(seconds=42), "42 s ago"),
        (timedelta(minutes=61), "1 h ago"),
        (timedelta(days=3), "3 d ago"),
        (timedelta(hours=-5), "in 5 h"),
    ],
)
def test_how_long_ago(passed: timedelta, text: str) -> None:
    """How long ago, or in how long, in one unit."""
    now = datetime(2026, 11, 24, tzinfo=UTC)
    assert formats.ago(now - passed, now) == text


def test_few_rows_are_spread_over_many() -> None:
    """A table of a chart has rows from its whole length, the last one among them."""
    assert formats.spread(range(4), 11) == [0, 1, 2, 3]
    assert formats.spread(range(300), 4) == [0, 100, 199, 299]
    assert formats.spread([], 4) == []
