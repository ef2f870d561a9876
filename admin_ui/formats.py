"""How numbers, times and money read, everywhere in the UI. What is not known is a dash, never 0.

Tokens 9,999 → 12.3k → 4.56M → 1.20B; times 0.8 ms, 123 ms, 1.23 s, 2 m 05 s; money from integer
nano-dollars, below a dollar with four digits; percents with one decimal, cut off and not rounded,
so that 99.97 % is never a false 100. Moments are in UTC, and said to be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

UNKNOWN: Final = "—"
NANO: Final = 1_000_000_000
_FEW_SAMPLES: Final = 20


def whole(value: int | float | None) -> str:
    """Write a number exactly, with thousands apart."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def tokens(value: int | float | None) -> str:
    """Write a number of tokens in at most four digits."""
    if value is None:
        return UNKNOWN
    if abs(value) < 9_999.5:
        return f"{value:,.0f}"
    for unit, letter, decimals in ((1e3, "k", 1), (1e6, "M", 2), (1e9, "B", 2)):
        # What would round up to a thousand is one of the next unit.
        if abs(value) < 999.5 * unit or letter == "B":
            scaled = value / unit
            return f"{scaled:.{decimals if abs(scaled) < 99.95 else 0}f}{letter}"
    raise AssertionError("the last unit takes all")


def seconds(value: float | None) -> str:
    """Write a time."""
    if value is None:
        return UNKNOWN
    if value < 0.9995:
        ms = value * 1000
        return f"{ms:.1f} ms" if 0 < ms < 9.95 else f"{ms:.0f} ms"
    if value < 59.995:
        return f"{value:.2f} s"
    whole_s = round(value)
    minutes, rest = divmod(whole_s, 60)
    if minutes < 60:
        return f"{minutes} m {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} m"
    return f"{hours // 24} d {hours % 24:02d} h"


def milliseconds(value: float | None) -> str:
    """Write a time that is given in milliseconds."""
    return seconds(None if value is None else value / 1000)


def sampled_seconds(value: float | None, number: int) -> str:
    """Write a time of so many samples, which are told where they are few."""
    if not number:
        return "n/a"
    text = seconds(value)
    return f"{text} (n={number})" if number < _FEW_SAMPLES else text


def money(nano_usd: int | None) -> str:
    """Write an amount of nano-dollars."""
    if nano_usd is None:
        return UNKNOWN
    sign, amount = ("−" if nano_usd < 0 else ""), abs(nano_usd)
    if amount == 0:
        return "$0.00"
    if amount < NANO // 10_000:
        return f"{sign}<$0.0001"
    if amount < NANO:
        return f"{sign}${amount / NANO:.4f}"
    return f"{sign}${amount / NANO:,.2f}"


def price(decimal: str) -> str:
    """Write a decimal amount of dollars with cents, and with all digits behind them."""
    whole_usd, _, part = decimal.partition(".")
    return f"${whole_usd}.{part:0<2}"


def percent(share: float | None) -> str:
    """Write a share of 1, cut off after one decimal."""
    if share is None:
        return UNKNOWN
    if share == 1:
        return "100 %"
    # What is stored as 0.29 is a little less, and is meant.
    return f"{math.floor(share * 1000 + 1e-6) / 10:.1f} %"


def rate(value: float | None) -> str:
    """Write how many a second."""
    return UNKNOWN if value is None else f"{tokens(value)}/s"


def number(value: float | None) -> str:
    """Write a number that need not be whole, in at most four digits."""
    return UNKNOWN if value is None else f"{value:.4g}"


def index(value: float | None) -> str:
    """Write a number between 0 and 1, such as Jain's index, cut off after three decimals."""
    return UNKNOWN if value is None else f"{math.floor(value * 1000 + 1e-6) / 1000:.3f}"


def moment(at: datetime | None) -> str:
    """Write a moment, and its zone."""
    return UNKNOWN if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def ago(at: datetime | None, now: datetime | None = None) -> str:
    """Write how long ago a moment was, or in how long it will be."""
    if at is None:
        return UNKNOWN
    passed_s = ((now or datetime.now(UTC)) - at).total_seconds()
    text = _rough(abs(passed_s))
    if abs(passed_s) < 5:
        return "now"
    return f"{text} ago" if passed_s > 0 else f"in {text}"


def _rough(span_s: float) -> str:
    for unit_s, letter, below_s in ((1, "s", 60), (60, "m", 3600), (3600, "h", 172_800)):
        if span_s < below_s:
            return f"{int(span_s // unit_s)} {letter}"
    return f"{int(span_s // 86_400)} d"


def size(value: int | None) -> str:
    """Write a number of bytes."""
    if value is None:
        return UNKNOWN
    for unit, name in ((1, "B"), (1 << 10, "KiB"), (1 << 20, "MiB"), (1 << 30, "GiB")):
        if value < unit << 10 or name == "GiB":
            return f"{value / unit:.0f} {name}" if unit == 1 else f"{value / unit:.1f} {name}"
    raise AssertionError("the last unit takes all")


def clock(at_s: float) -> str:
    """Write the time of day of a moment, in seconds since 1970."""
    return f"{datetime.fromtimestamp(at_s, UTC):%H:%M:%S}"


def spread(rows: Sequence[object], most: int) -> list[int]:
    """Return so many places of a list, evenly apart, the last one among them."""
    last = len(rows) - 1
    if last < most:
        return list(range(len(rows)))
    return [round(place * last / (most - 1)) for place in range(most)]


def choices(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return options that are called as they are sent."""
    return [(name, name) for name in names]


FILTERS: Final[dict[str, Callable[..., Any]]] = {
    "whole": whole,
    "tokens": tokens,
    "seconds": seconds,
    "milliseconds": milliseconds,
    "money": money,
    "price": price,
    "percent": percent,
    "rate": rate,
    "number": number,
    "index": index,
    "moment": moment,
    "ago": ago,
    "size": size,
    "clock": clock,
    "spread": spread,
    "choices": choices,
}
