"""What one workload has to say, and how a person gets to see it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from scheduler.bench.report import Figure

_HEADER = ("", "tokens/s", "generate", "generate_batch", "of ceiling", "")


@dataclass(frozen=True, slots=True)
class Row:
    """Show one case in the table; rates in tokens/s, the peers' beside Sluice's own."""

    case: str
    tokens_per_s: float | None
    peer: float | None = None
    peer_continuous: float | None = None
    share_of_ceiling: float | None = None
    note: str = ""


@dataclass(slots=True)
class Part:
    """Gather what one workload has to say; not `complete` while it is still being measured."""

    figures: dict[str, Figure] = field(default_factory=dict)
    samples: dict[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    complete: bool = True


def grow(measured: Part | Iterator[Part]) -> Iterator[Part]:
    """Yield a part whenever there is more in it, and once more when nothing is missing.

    A workload returns its part, or yields it again and again as it measures: what it has yielded
    is written, so that a run that is cut short keeps it.
    """
    if isinstance(measured, Part):
        yield measured
        return
    part = None
    for part in measured:
        part.complete = False
        yield part
    if part is not None:
        part.complete = True
        yield part


def print_part(title: str, part: Part) -> None:
    """Print one part for a person: its cases, then its figures that have a goal."""
    write = sys.stdout.write
    write(f"\n{title}\n")
    cells = [_HEADER, *(_cells(row) for row in part.rows)] if part.rows else []
    widths = [max((len(row[i]) for row in cells), default=0) for i in range(len(_HEADER))]
    for row in cells:
        padded = [
            cell.ljust(width) if column in (0, len(widths) - 1) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        write(f"  {'  '.join(padded).rstrip()}\n")
    for key, figure in part.figures.items():
        if figure.goal is not None:
            verdict = "met" if figure.met else "missed"
            write(f"  {key}: {figure.value:.3g}, goal {figure.goal} {verdict}\n")
    sys.stdout.flush()


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.case,
        _rate(row.tokens_per_s),
        _rate(row.peer),
        _rate(row.peer_continuous),
        "" if row.share_of_ceiling is None else f"{row.share_of_ceiling:.0%}",
        row.note,
    )


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
