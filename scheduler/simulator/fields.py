"""Reads the fields of a trace's rows, and says where one is that does not read.

Whatever a file holds comes out as a number within its bounds or as a `SimulationError` that names
the line and the column. Counts are bounded because a prompt of so many tokens is made of them.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scheduler.simulator.errors import SimulationError

MAX_TOKENS = 10_000_000
# Three decades: steps of a millisecond still add up at such times.
MAX_TIME_S = 1e9
_MAX_NUMBER = 1e9


@dataclass(frozen=True, slots=True)
class Fields:
    """Hold what one line of a file says, by column."""

    path: Path
    line: int
    values: Mapping[str, Any]

    def has(self, column: str) -> bool:
        """Tell whether anything stands in a column, which may be missing."""
        return self.values.get(column) not in (None, "")

    def text(self, column: str) -> str:
        """Read what must not be empty."""
        if not self.has(column):
            raise self.error(column, "is empty")
        return str(self.values[column])

    def count(self, column: str, *, least: int = 0) -> int:
        """Read a number of tokens, `least` or more."""
        value = number = self.values.get(column)
        if isinstance(value, str):
            try:
                number = int(value)
            except ValueError:
                number = None
        # A number of JSON may have a fraction, or be true.
        if type(number) is int and least <= number <= MAX_TOKENS:
            return number
        raise self.error(column, f"{_quoted(value)} is not {least:,} to {MAX_TOKENS:,} tokens")

    def time_s(self, column: str, *, scale: float = 1.0) -> float:
        """Read a time from the start of the trace, in seconds once it is multiplied by `scale`."""
        number = scale * self._number(column)
        if not 0.0 <= number <= MAX_TIME_S:
            value = _quoted(self.values.get(column))
            raise self.error(column, f"{value} is no time from the start on")
        return number

    def positive(self, column: str, *, scale: float = 1.0) -> float:
        """Read a number above 0, to be multiplied by `scale`."""
        number = self._number(column)
        if not 0.0 < number <= _MAX_NUMBER:
            value = _quoted(self.values.get(column))
            raise self.error(column, f"{value} is not above 0 and at most {_MAX_NUMBER:g}")
        return number * scale

    def moment(self, column: str) -> datetime:
        """Read a date and time; its seconds may have seven digits, of which six count."""
        value = self.text(column)
        try:
            when = datetime.fromisoformat(value[:26])
        except ValueError:
            raise self.error(column, f"{_quoted(value)} is no date and time") from None
        return when.replace(tzinfo=UTC) if when.tzinfo is None else when

    def error(self, column: str, why: str) -> SimulationError:
        """Make an error that says where it is."""
        return SimulationError(f"{self.path}: line {self.line}, column {column}: {why}")

    def _number(self, column: str) -> float:
        value = self.values.get(column)
        try:
            number = float(value) if isinstance(value, str | int | float) else math.nan
        except (ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise self.error(column, f"{_quoted(value)} is not a number")
        return number


def csv_rows(path: Path, columns: Sequence[str], limit: int | None) -> Iterator[Fields]:
    """Read the first `limit` rows under the header of a CSV file.

    Raises: `SimulationError`: a row has more fields than there are columns.
    """
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file)
        next(reader)
        num_rows = 0
        for row in reader:
            if num_rows == limit:
                return
            if not row:
                continue
            num_rows += 1
            if len(row) > len(columns):
                raise SimulationError(
                    f"{path}: line {reader.line_num} has {len(row)} fields, "
                    f"and there are {len(columns)} columns"
                )
            yield Fields(path, reader.line_num, dict(zip(columns, row, strict=False)))


def _quoted(value: Any) -> str:
    """Write a value as short as a message allows."""
    if value in (None, ""):
        return "nothing"
    text = str(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
