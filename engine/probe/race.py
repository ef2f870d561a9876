"""Race candidates, so that a neighbour on the same machine disturbs the figures, not the verdict.

Runs alternate, and each candidate is judged by its best.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from torch import Tensor

ROUNDS = 3
# Rows at which candidates race: a lone request and a few.
ROWS = (1, 8)
# What is to replace another must take at most this share of its time.
WORTH_IT = 0.95


def race(*candidates: Callable[[], object]) -> list[float]:
    """Run candidates in turn, and return the best time of each, in seconds."""
    for run in candidates:
        run()
    times = [[time_s(run) for run in candidates] for _ in range(ROUNDS)]
    return [min(column) for column in zip(*times, strict=True)]


def consume(results: Iterable[Tensor]) -> int:
    """Compute all of them, and let each go before the next."""
    return sum(len(result) for result in results)


def time_s(run: Callable[[], object]) -> float:
    """Run once; returns seconds."""
    started_s = time.perf_counter()
    run()
    return time.perf_counter() - started_s
