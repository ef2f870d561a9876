"""How far a batch is, on stderr: a bar on a terminal, elsewhere a line for each change."""

from __future__ import annotations

import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, TextIO

from gateway.cli.options import NANO_PER_USD, nano_to_usd
from scheduler.progress import duration

Document = Mapping[str, Any]  # a batch as the server shows it

_BAR_WIDTH: Final = 24
# A log of a day stays readable: counts alone are a line only so often.
_LOG_INTERVAL_S: Final = 10.0
_PACE_S: Final = 120.0
_PAUSES: Final = {
    "budget": "the tenant's budget is used up",
    "key_revoked": "the key that submitted it is revoked",
    "model_not_found": "its model is not served now",
}


def why_paused(batch: Document) -> str | None:
    """Say why nothing of a batch runs for now, or return None."""
    reason = batch.get("paused_for")
    return None if reason is None else f"paused: {_PAUSES.get(reason, reason)}"


def who_is_needed(batch: Document) -> str | None:
    """Say what of a batch waits for the server's operator, or return None."""
    number = batch.get("num_awaiting_operator")
    return f"{number:,} wait for the server's operator" if number else None


def costs(batch: Document) -> list[str]:
    """Say what a batch has cost so far and what that saved, as far as the server tells."""
    usage = batch.get("usage") or {}
    cost, saved = usage.get("cost_nano_usd"), usage.get("saved_nano_usd")
    said = [] if cost is None else [_usd(cost)]
    return said if saved is None else [*said, f"{_usd(saved)} saved"]


class Pace:
    """Tell how long a batch still takes, by what it did in the last two minutes."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def left_s(self, batch: Document, now: float) -> float | None:
        """Return seconds, or None where nothing is known or nothing runs."""
        total, over = _counts(batch)
        self._seen.append((now, over))
        while len(self._seen) > 2 and now - self._seen[1][0] >= _PACE_S:
            self._seen.popleft()
        began, before = self._seen[0]
        if over in (before, total) or why_paused(batch):
            return None
        return (total - over) * (now - began) / (over - before)


class BatchProgress:
    """Show one batch again and again; close it, or use it as a context manager."""

    def __init__(
        self, *, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._terminal = self._stream.isatty()
        self._clock = clock
        self._pace = Pace()
        self._width = 0
        self._line = ""
        self._state: object = None
        self._written_s = 0.0

    def show(self, batch: Document) -> None:
        """Draw the batch as it is now; elsewhere than on a terminal only what has changed."""
        now = self._clock()
        left_s = self._pace.left_s(batch, now)
        if self._terminal:
            self._draw(batch["status"], ", ".join(_details(batch, left_s)), _share(batch))
            return
        line = f"{batch['id']} {batch['status']} {', '.join(_details(batch, None))}".rstrip()
        state = (batch["status"], batch.get("paused_for"))
        is_due = state != self._state or now - self._written_s >= _LOG_INTERVAL_S
        if line != self._line and is_due:
            self._state, self._line, self._written_s = state, line, now
            self._stream.write(f"{line}\n")
            self._stream.flush()

    def say(self, text: str) -> None:
        """Write a note on a line of its own."""
        self.close()
        self._stream.write(f"{text}\n")
        self._stream.flush()

    def close(self) -> None:
        """On a terminal, leave the line."""
        if self._terminal and self._width:
            self._width = 0
            self._stream.write("\n")
            self._stream.flush()

    def __enter__(self) -> BatchProgress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _draw(self, status: str, details: str, share: float) -> None:
        """Draw one line; the bar has what the words leave of it."""
        columns = shutil.get_terminal_size().columns - 1
        width = min(_BAR_WIDTH, max(0, columns - len(f"{status}  {details}")))
        filled = int(width * share)
        line = f"{status} {'█' * filled}{'░' * (width - filled)} {details}"
        # One that wraps could not be drawn over.
        line = line[:columns]
        self._stream.write(f"\r{line.ljust(self._width)}")
        self._stream.flush()
        self._width = len(line)


def _counts(batch: Document) -> tuple[int, int]:
    """Return how many requests a batch has, and how many of them are over."""
    counts = batch.get("request_counts") or {}
    return counts.get("total", 0), counts.get("completed", 0) + counts.get("failed", 0)


def _share(batch: Document) -> float:
    total, over = _counts(batch)
    return over / total if total else 0.0


def _details(batch: Document, left_s: float | None) -> list[str]:
    """Say all that is known, what matters most first: a narrow terminal cuts the rest."""
    total, over = _counts(batch)
    failed = (batch.get("request_counts") or {}).get("failed", 0)
    usage = batch.get("usage") or {}
    num_tokens = usage.get("input_tokens", 0) + usage.get("output_tokens", 0)
    said = [f"{over:,}/{total:,}"] if total else []
    said += [f"{failed:,} failed"] if failed else []
    reason = why_paused(batch)
    said += [one for one in (reason, who_is_needed(batch)) if one]
    said += [f"{duration(left_s)} left"] if left_s is not None else []
    return [*said, *costs(batch), *([f"{_short(num_tokens)} tokens"] if num_tokens else [])]


def _short(number: int) -> str:
    """Write a number in three or four characters."""
    for unit, name in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if number >= unit:
            return f"{number / unit:.{0 if number >= 100 * unit else 1}f}{name}"
    return str(number)


def _usd(nano: int) -> str:
    """Write an amount for a person: cents from a dollar on, millionths below."""
    if nano >= NANO_PER_USD:
        return f"${nano / NANO_PER_USD:,.2f}"
    return f"${nano_to_usd(round(nano, -3))}"
