"""Windows that limits count in: calendar time in UTC, or the last so many hours.

A new window has a new name, so nothing is ever reset.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

# A rolling window is counted in at most this many slots, so it forgets in steps of a thirtieth.
MAX_SLOTS = 30

_ROLLING = re.compile(r"(?P<number>[1-9]\d{0,4})(?P<unit>[hd])", re.ASCII)
_MAX_ROLLING_H = 366 * 24


@dataclass(frozen=True, slots=True)
class Slot:
    """Name the part of a window that a moment falls in, and the oldest part that still counts.

    All in seconds since 1970; `start_s <= moment < end_s`. In calendar windows the two starts
    are the same.
    """

    start_s: int
    end_s: int
    oldest_s: int


@dataclass(frozen=True, slots=True)
class Window:
    """Say over what time an amount is counted: `day`, `week` (from Monday), `month`, or the last
    `24h`, `30d`.
    """

    text: str

    def __post_init__(self) -> None:
        if self.text not in ("day", "week", "month"):
            found = _ROLLING.fullmatch(self.text)
            hours = int(found["number"]) * (24 if found["unit"] == "d" else 1) if found else 0
            if not 1 <= hours <= _MAX_ROLLING_H:
                raise ValueError("a window is day, week, month, or as 24h or 30d, at most a year")

    @property
    def rolling_h(self) -> int | None:
        """Return the hours of a rolling window; None for one of the calendar."""
        found = _ROLLING.fullmatch(self.text)
        return int(found["number"]) * (24 if found["unit"] == "d" else 1) if found else None

    def slot(self, now_s: float) -> Slot:
        """Return the slot that a moment falls in."""
        if self.rolling_h is not None:
            slot_h = -(-self.rolling_h // MAX_SLOTS)
            num_slots = -(-self.rolling_h // slot_h)
            width_s = slot_h * 3600
            start_s = int(now_s // width_s) * width_s
            return Slot(start_s, start_s + width_s, start_s - num_slots * width_s)
        now = datetime.fromtimestamp(now_s, UTC)
        start = now.replace(hour=0, minute=0, second=0, microsecond=0)
        if self.text == "week":
            start -= timedelta(days=start.weekday())
            end = start + timedelta(days=7)
        elif self.text == "month":
            start = start.replace(day=1)
            end = (start + timedelta(days=32)).replace(day=1)
        else:
            end = start + timedelta(days=1)
        return Slot(int(start.timestamp()), int(end.timestamp()), int(start.timestamp()))


MONTH = Window("month")
