"""Named sets of runs whose figures have goals; `sluice simulate --suite NAME` runs one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scheduler.bench.report import Figure

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

    `report` names the file of its figures among the benchmarks.
    """

    num_runs: int
    run: Callable[[OnRun], SuiteResult]
    report: str


def suites() -> Mapping[str, Suite]:
    """List the suites by name."""
    from scheduler.simulator import (
        admission_suite,
        batching_suite,
        harvest_suite,
        isolation_suite,
        preemption_suite,
        slo_suite,
        vtc_suite,
    )

    return {
        "vtc": Suite(vtc_suite.NUM_RUNS, vtc_suite.run, "simulate-vtc"),
        "slo": Suite(slo_suite.NUM_RUNS, slo_suite.run, "simulate-slo"),
        "admission": Suite(admission_suite.NUM_RUNS, admission_suite.run, "simulate-admission"),
        "preemption": Suite(preemption_suite.NUM_RUNS, preemption_suite.run, "simulate-preemption"),
        "harvest": Suite(harvest_suite.NUM_RUNS, harvest_suite.run, "harvest"),
        "isolation": Suite(isolation_suite.NUM_RUNS, isolation_suite.run, "simulate-isolation"),
        "batching": Suite(batching_suite.NUM_RUNS, batching_suite.run, "simulate-batching"),
    }
