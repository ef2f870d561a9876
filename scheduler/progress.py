"""A progress bar on stderr for long work, in the standard library alone.

On a terminal one line is drawn over and over; elsewhere (a log, a pipe) a line is written now and
then, so that a log of an hour stays readable.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

_TERMINAL_INTERVAL_S = 0.1
_LOG_INTERVAL_S = 10.0
_BAR_WIDTH = 24


class Progress:
    """Count up to `total` with `advance`; close it, or use it as a context manager.

    `amount` counts something beside, in `unit` (tokens), and is shown as a rate.
    """

    def __init__(
        self,
        total: int,
        *,
        label: str,
        unit: str = "tokens",
        enabled: bool = True,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._enabled = enabled
        self._stream = sys.stderr if stream is None else stream
        self._terminal = self._stream.isatty()
        self._interval_s = _TERMINAL_INTERVAL_S if self._terminal else _LOG_INTERVAL_S
        self._total = total
        self._label = label
        self._unit = unit
        self._clock = clock
        self._started_s = self._drawn_s = clock()
        self._done = 0
        self._amount = 0
        self._width = 0

    def advance(self, count: int = 0, *, amount: int = 0) -> None:
        """Add to what is done and to the amount; draws if the last time is long enough ago."""
        self._done += count
        self._amount += amount
        now = self._clock()
        if now - self._drawn_s >= self._interval_s:
            self._drawn_s = now
            self._draw(now)

    def close(self) -> None:
        """Draw the last state; on a terminal, leave the line."""
        self._draw(self._clock())
        if self._terminal and self._enabled:
            self._stream.write("\n")
            self._stream.flush()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _draw(self, now: float) -> None:
        if not self._enabled:
            return
        line = self._line(now - self._started_s)
        if self._terminal:
            # Spaces over what a longer line has left behind.
            self._stream.write(f"\r{line.ljust(self._width)}")
            self._width = len(line)
        else:
            self._stream.write(f"{line}\n")
        self._stream.flush()

    def _line(self, elapsed_s: float) -> str:
        share = self._done / self._total if self._total else 1.0
        filled = int(share * _BAR_WIDTH)
        bar = "█" * filled + "░" * (_BAR_WIDTH - filled) if self._terminal else f"{share:.0%}"
        rate = f"{self._amount / elapsed_s:,.0f}" if elapsed_s > 0 else "–"
        parts = [f"{self._label} {bar} {self._done}/{self._total}", f"{rate} {self._unit}/s"]
        if self._done == self._total:
            parts.append(f"{duration(elapsed_s)}")
        elif self._done:
            parts.append(f"{duration(elapsed_s / share - elapsed_s)} left")
        return ", ".join(parts)


def duration(seconds: float) -> str:
    """Spell a time as 1:02:03, or 2:03 below an hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
