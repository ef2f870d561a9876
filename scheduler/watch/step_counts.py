"""What steps were like, in all: how many rows and tokens they had, and how long they took.

Quantities are counted in fixed buckets: over any stretch of time the difference of two readings is
a distribution. A step only notes its figures; they are counted all together when they are read, or
once there are a thousand, which takes a tenth of a millisecond.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import numpy as np
from numpy.typing import NDArray

_MAX_NEW = 1024
ROW_BOUNDS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)
TOKEN_BOUNDS: Final = (1.0, 4.0, 16.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0)
SECOND_BOUNDS: Final = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    10.0,
)


@dataclass(frozen=True, slots=True)
class Histogram:
    """Say how many values were at most each of `bounds`, and how many there were in all, last.

    So `counts` never fall from one to the next and have one more than the bounds; `total` is the
    sum of all values.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


class Buckets:
    """Count values between bounds."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = np.zeros(len(bounds) + 1, dtype=np.int64)
        self._total = 0.0

    def add(self, values: NDArray[np.float64]) -> None:
        """Count values, [n]."""
        places = np.searchsorted(self._bounds, values)
        self._counts += np.bincount(places, minlength=len(self._counts))
        self._total += float(values.sum())

    def read(self) -> Histogram:
        """Return what was counted."""
        return Histogram(self._bounds, tuple(accumulate(self._counts.tolist())), self._total)


@dataclass(frozen=True, slots=True)
class StepFigures:
    """Say what steps were like, and how many tokens of prompts and of rows they had in all."""

    rows: Histogram
    tokens: Histogram
    seconds: Histogram
    num_prefill_tokens: int
    num_decode_tokens: int


class StepCounts:
    """Count steps as they come back."""

    __slots__ = (
        "_new",
        "_num_decode_tokens",
        "_num_prefill_tokens",
        "_rows",
        "_seconds",
        "_tokens",
    )

    def __init__(self) -> None:
        self._rows = Buckets(ROW_BOUNDS)
        self._tokens = Buckets(TOKEN_BOUNDS)
        self._seconds = Buckets(SECOND_BOUNDS)
        self._num_decode_tokens = self._num_prefill_tokens = 0
        self._new: list[tuple[int, int, int, float]] = []

    def note(
        self, num_chunks: int, num_prefill_tokens: int, num_decodes: int, took_s: float
    ) -> None:
        """Note a step: its parts of prompts, their tokens, and its rows that decode."""
        self._new.append((num_chunks, num_prefill_tokens, num_decodes, took_s))
        if len(self._new) >= _MAX_NEW:
            self._count()

    def read(self) -> StepFigures:
        """Return what was counted."""
        self._count()
        return StepFigures(
            self._rows.read(),
            self._tokens.read(),
            self._seconds.read(),
            self._num_prefill_tokens,
            self._num_decode_tokens,
        )

    def _count(self) -> None:
        if not self._new:
            return
        num_chunks, num_prefill_tokens, num_decodes, took_s = np.array(self._new).T
        self._new.clear()
        self._rows.add(num_chunks + num_decodes)
        self._tokens.add(num_prefill_tokens + num_decodes)
        self._seconds.add(took_s)
        self._num_prefill_tokens += int(num_prefill_tokens.sum())
        self._num_decode_tokens += int(num_decodes.sum())
