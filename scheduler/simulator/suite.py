"""What a suite is: a named set of runs whose figures have goals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from scheduler.figure import Figure

OnRun = Callable[[str], None]


@dataclass(slots=True)
class SuiteResult:
    """Gather a suite's figures, the numbers behind them, and a table of its runs."""

    figures: dict[str, Figure] = field(default_factory=dict)
    samples: dict[str, Any] = field(default_factory=dict)
    header: Sequence[str] = ()
    rows: list[Sequence[str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Suite:
    """Run with `run`, which tells of each of its `num_runs` runs as it is done.

    `report` names the file of its figures among the benchmarks. `about_s` is the processor's time
    that it was measured to take, all on one core; None where nobody has measured it.
    """

    num_runs: int
    run: Callable[[OnRun], SuiteResult]
    report: str
    about_s: float | None = None
