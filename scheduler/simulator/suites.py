"""The suites by name; `sluice simulate --suite NAME` runs one."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.simulator import (
    admission_suite,
    batching_suite,
    goodput_suite,
    harvest_suite,
    isolation_suite,
    light_suite,
    preemption_suite,
    slo_suite,
    vtc_suite,
)
from scheduler.simulator.suite import Suite


def suites() -> Mapping[str, Suite]:
    """List the suites by name."""
    return {
        "vtc": Suite(vtc_suite.NUM_RUNS, vtc_suite.run, "simulate-vtc", about_s=200),
        "slo": Suite(slo_suite.NUM_RUNS, slo_suite.run, "simulate-slo"),
        "goodput": Suite(goodput_suite.NUM_RUNS, goodput_suite.run, "simulate-goodput"),
        "admission": Suite(admission_suite.NUM_RUNS, admission_suite.run, "simulate-admission"),
        "preemption": Suite(preemption_suite.NUM_RUNS, preemption_suite.run, "simulate-preemption"),
        "harvest": Suite(harvest_suite.NUM_RUNS, harvest_suite.run, "harvest"),
        "isolation": Suite(isolation_suite.NUM_RUNS, isolation_suite.run, "simulate-isolation"),
        "light": Suite(light_suite.NUM_RUNS, light_suite.run, "simulate-light"),
        "batching": Suite(
            batching_suite.NUM_RUNS, batching_suite.run, "simulate-batching", about_s=43
        ),
    }
