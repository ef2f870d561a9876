"""What a step costs whoever decodes in it, and what a row adds: a line through steps of all sizes.

Regression over the last steps tells the two apart only where these had few rows and many. So steps
are averaged apart by how many rows they had, in powers of two, and each average counts the same:
a thousand steps of 140 rows do not outweigh ten of 30, nor does a second in which something else
was slow. Sizes that were seen lately are enough where they differ: what a lone row took says little
of a machine that is busy.

Only steps without prompts count, and only after three that were about as large. Handing out what
those drew takes its part of the time of this one: 35 rows that run once among 140 took as long as
90 do, 10 that run for the third time after 42 as long as 20, and what any step costs came out three
to five times too high.
"""

from __future__ import annotations

from typing import Final

_NUM_SIZES: Final = 20
# An average is of about so many steps, and forgotten after so many in which there was none.
_NUM_AVERAGED: Final = 32
_FORGOTTEN_AFTER: Final = 8_192
_LATELY: Final = 640
# A hiccup counts as a step that took so many times the average.
_MAX_RATIO: Final = 3.0
# Of the sizes that a line is drawn through, the largest is so many times the smallest.
_LEAST_SPREAD: Final = 1.5
# Steps before one that counts, each with so many times the rows of the last at most, or as many
# times fewer.
_NUM_ALIKE: Final = 3
_MAX_CHANGE: Final = 1.25
# A row costs at least what so many tokens of its context do.
_MAX_CONTEXT: Final = 1 / 128


class _Size:
    """Average steps of about as many rows."""

    __slots__ = ("contexts", "num_seen", "rows", "seen_at", "took_s")

    def __init__(self) -> None:
        self.num_seen = self.seen_at = 0
        self.rows = self.contexts = self.took_s = 0.0

    def add(self, num_rows: int, num_contexts: int, took_s: float, number: int) -> None:
        self.num_seen = min(self.num_seen + 1, _NUM_AVERAGED)
        if self.num_seen > 1:
            took_s = min(took_s, _MAX_RATIO * self.took_s)
        self.rows += (num_rows - self.rows) / self.num_seen
        self.contexts += (num_contexts - self.contexts) / self.num_seen
        self.took_s += (took_s - self.took_s) / self.num_seen
        self.seen_at = number


class DecodeLine:
    """Learn the line; see the module."""

    def __init__(self) -> None:
        self._sizes = [_Size() for _ in range(_NUM_SIZES)]
        self._number = 0
        self._num_rows_before = self._num_alike = 0
        # What was asked last, and found: a step asks several times.
        self._asked = (0.0, 0.0, -1)
        self._found: tuple[float, float, float] | None = None

    def observe(self, num_rows: int, num_contexts: int, took_s: float, *, decodes: bool) -> None:
        """Learn from the next step, if it only `decodes`; see the module for which."""
        self._number += 1
        before, self._num_rows_before = self._num_rows_before, num_rows
        least, most = sorted((before, num_rows))
        self._num_alike = self._num_alike + 1 if most <= _MAX_CHANGE * least else 0
        if not decodes or self._num_alike < _NUM_ALIKE:
            return
        size = self._sizes[min(num_rows.bit_length(), _NUM_SIZES - 1)]
        if self._number - size.seen_at > _FORGOTTEN_AFTER:
            size.num_seen = 0
        size.add(num_rows, num_contexts, took_s, self._number)

    def costs(self, row_s: float, context_s: float) -> tuple[float, float, float] | None:
        """Say what any step costs, a row, and a token of its context, in seconds.

        Args: what is known otherwise of a row and a token of its context, of which the proportion
        is taken. Returns: None where steps were too much alike to tell.
        """
        asked = row_s, context_s, self._number
        if asked != self._asked:
            self._asked, self._found = asked, self._find(row_s, context_s)
        return self._found

    def _find(self, row_s: float, context_s: float) -> tuple[float, float, float] | None:
        context = _MAX_CONTEXT
        if context_s < _MAX_CONTEXT * row_s:
            context = max(0.0, context_s / row_s)
        for num_steps in (_LATELY, _FORGOTTEN_AFTER):
            points = self._points(context, self._number - num_steps)
            if len(points) > 1 and points[-1][0] >= _LEAST_SPREAD * points[0][0]:
                fixed_s, slope_s = _line(points)
                return fixed_s, slope_s, context * slope_s
        return None

    def _points(self, context: float, since: int) -> list[tuple[float, float]]:
        """List averages by size: rows, contexts counted as so much of a row, and seconds."""
        return [
            (size.rows + context * size.contexts, size.took_s)
            for size in self._sizes
            if size.num_seen and size.seen_at >= since
        ]


def _line(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Draw a line through points; neither its start nor its slope is below zero."""
    # Relative errors count, so that short steps do as much as long ones.
    total = at_sum = took_sum = 0.0
    for at, took_s in points:
        weight = took_s**-2
        total += weight
        at_sum += weight * at
        took_sum += weight * took_s
    mean, mean_s = at_sum / total, took_sum / total
    spread = both = 0.0
    for at, took_s in points:
        away = took_s**-2 * (at - mean)
        spread += away * (at - mean)
        both += away * took_s
    slope_s = min(max(both / spread, 0.0), mean_s / mean)
    return mean_s - slope_s * mean, slope_s
