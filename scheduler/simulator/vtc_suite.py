"""The VTC paper's workloads under VTC and FCFS, beside the reference's own figures.

The references are a replay of the workloads in virtual time with the same step costs; where there
is none, the artifact's result files read by its own metric code. Both are service differences in
weighted tokens a second (max, avg) and tokens/s, of the project's survey of the paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scheduler.figure import Figure, at_least, at_most
from scheduler.simulator.compat import vtc_config, vtc_machine
from scheduler.simulator.fairness import service_of_tenants
from scheduler.simulator.metrics import measure
from scheduler.simulator.report import number
from scheduler.simulator.run import simulate
from scheduler.simulator.suite import OnRun, SuiteResult
from scheduler.simulator.vtc_traces import late_joiner, vtc_workload

_AVG_FACTOR = 1.25
_SMALL_AVG = 20.0
_THROUGHPUT_TOLERANCE = 0.08
_FCFS_SHARE = 0.8
_LATE_TOLERANCE = 0.05
_LATE_WINDOW_S = (300.0, 400.0)


@dataclass(frozen=True, slots=True)
class Reference:
    """State what is to be reproduced; None where the reference has no figure."""

    vtc_avg: float
    tokens_per_s: float
    fcfs_avg: float | None


REFERENCES: Mapping[str, Reference] = {
    "overload": Reference(102, 940, 449),
    "overload-multi": Reference(97, 935, 245),
    "proportional": Reference(9, 939, 102),
    "on_off_less": Reference(52, 944, 140),
    "on_off_overload": Reference(17, 940, 412),
    "poisson_short_long": Reference(20, 1524, 182),
    "poisson_short_long_2": Reference(18, 1907, 894),
    "increase": Reference(6, 744, 28),
    "dist_shift": Reference(33, 903, None),
    "overload-weighted": Reference(144, 886, None),
}
NUM_RUNS = 2 * len(REFERENCES) + 1


def run(on_run: OnRun) -> SuiteResult:
    """Run every workload under both policies, and one with a client that joins late."""
    result = SuiteResult(
        header=("workload", "VTC avg", "ref", "max", "FCFS avg", "ref", "tokens/s", "ref")
    )
    for name, reference in REFERENCES.items():
        _run_workload(name, reference, result, on_run)
    _run_late_joiner(result)
    on_run("late_joiner")
    return result


def _run_workload(name: str, reference: Reference, result: SuiteResult, on_run: OnRun) -> None:
    runs = {}
    for policy in ("vtc", "fcfs"):
        figures = measure(simulate(vtc_machine(), vtc_config(policy), vtc_workload(name)))
        runs[policy] = figures
        on_run(f"{name} {policy}")
        result.samples[f"{name}/{policy}"] = {
            key: figures[key]
            for key in (
                "service_difference",
                "interval_service_difference_max",
                "tokens_per_s",
                "virtual_seconds",
                "jain",
                "rows_per_step",
                "preemptions",
            )
        }
    vtc, fcfs = (runs[policy]["service_difference"] for policy in ("vtc", "fcfs"))
    rate = runs["vtc"]["tokens_per_s"]
    slug = name.replace("-", "_")
    bound = max(_SMALL_AVG, _AVG_FACTOR * reference.vtc_avg)
    result.figures[f"{slug}_vtc_service_difference_avg"] = at_most(vtc["avg"], bound, "tokens/s")
    off = abs(rate / reference.tokens_per_s - 1)
    result.figures[f"{slug}_throughput_deviation"] = at_most(off, _THROUGHPUT_TOLERANCE, "share")
    result.figures[f"{slug}_fcfs_service_difference_avg"] = (
        Figure(fcfs["avg"], "tokens/s")
        if reference.fcfs_avg is None
        else at_least(fcfs["avg"], _FCFS_SHARE * reference.fcfs_avg, "tokens/s")
    )
    result.rows.append(
        (
            name,
            number(vtc["avg"]),
            number(reference.vtc_avg),
            number(vtc["max"]),
            number(fcfs["avg"]),
            number(reference.fcfs_avg),
            number(rate),
            number(reference.tokens_per_s),
        )
    )


def _run_late_joiner(result: SuiteResult) -> None:
    """Compare service over the 100 s after a second client has begun to overload as well."""
    since_s, until_s = _LATE_WINDOW_S
    done = simulate(vtc_machine(), vtc_config("vtc"), late_joiner(), until_s=until_s)
    service = service_of_tenants(done, since_s=since_s, until_s=until_s)
    off = abs(float(service[1] / service[0]) - 1)
    result.figures["late_joiner_service_deviation"] = at_most(off, _LATE_TOLERANCE, "share")
    result.samples["late_joiner"] = {"service": [float(amount) for amount in service]}
