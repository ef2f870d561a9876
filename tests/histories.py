"""Random histories: how many a test draws, and from which seeds.

A few are drawn in `make test`, the same ones each time; many times as many in a soak. In continuous
integration they are fresh ones: their seed is in `SLUICE_HISTORIES_SEED`. One that fails is printed
and kept in a file beside the test, from which it is drawn again in every run from then on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

FACTOR: Final = "SLUICE_HISTORIES_FACTOR"
SEED: Final = "SLUICE_HISTORIES_SEED"


def num_histories(few: int) -> int:
    """Return how many to draw where `make test` draws `few`."""
    return few * int(os.environ.get(FACTOR, "1"))


def seeds(kept: Path) -> Sequence[int | None]:
    """Return what to draw from: the seeds that failed once, and the run's own; None is no seed."""
    lines = kept.read_text().splitlines() if kept.exists() else []
    failed = [int(line) for line in lines if not line.startswith("#")]
    fresh = os.environ.get(SEED)
    return [*failed, int(fresh) if fresh else None]


@contextmanager
def kept_if_it_fails(seed: int | None, kept: Path) -> Iterator[None]:
    """Print a seed whose histories fail in the block, and keep it."""
    try:
        yield
    except BaseException as exc:
        if seed is not None:
            exc.add_note(f"drawn again with {SEED}={seed}, and kept in {kept}")
            if seed not in seeds(kept)[:-1]:
                with kept.open("a") as file:
                    file.write(f"{seed}\n")
        raise
