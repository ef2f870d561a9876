"""Usage by day as bars: drawn by the server, as an SVG whose sizes are attributes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gateway.domain.usage import UsageSum, UsageTotals

WIDTH, HEIGHT = 1000.0, 160.0


@dataclass(frozen=True, slots=True)
class DayBar:
    """Draw one day: from the bottom cached, other input, output; in the SVG's own units."""

    day: str
    totals: UsageTotals
    x: float
    width: float
    cached: float
    fresh: float
    output: float


@dataclass(frozen=True, slots=True)
class DayBars:
    """Hold the days, whole, whether used or not; `most` is the tokens of the highest bar."""

    bars: list[DayBar]
    most: int


def day_bars(sums: Sequence[UsageSum], start: datetime, num_days: int) -> DayBars:
    """Draw so many days from `start`; a day without a sum has none."""
    by_day = {one.of[0]: one.totals for one in sums}
    days = [f"{start + timedelta(days=day):%Y-%m-%d}" for day in range(num_days)]
    totals = [by_day.get(day, UsageTotals()) for day in days]
    most = max((one.input_tokens + one.output_tokens for one in totals), default=0)
    step = WIDTH / num_days
    scale = HEIGHT / most if most else 0.0
    bars = [
        DayBar(
            day=day,
            totals=one,
            x=round(place * step + step * 0.15, 2),
            width=round(step * 0.7, 2),
            cached=round(one.cached_tokens * scale, 2),
            fresh=round((one.input_tokens - one.cached_tokens) * scale, 2),
            output=round(one.output_tokens * scale, 2),
        )
        for place, (day, one) in enumerate(zip(days, totals, strict=True))
    ]
    return DayBars(bars, most)
