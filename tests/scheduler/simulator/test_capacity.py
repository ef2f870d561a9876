"""What load is a multiple of: what a full engine does, whatever the length of the trace."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from scheduler.config import SchedulerConfig
from scheduler.simulator.capacity import measure_capacity
from scheduler.simulator.setup import load_machine
from scheduler.simulator.traces import read_trace
from scheduler.simulator.workload import Arrival, Workload

EXAMPLES = Path(__file__).parents[3] / "examples" / "traces"
MACHINE = load_machine("a100-llama-3-8b")


def capacity(workload: Workload) -> float:
    return measure_capacity(MACHINE, SchedulerConfig(), workload)


def test_short_trace_has_the_capacity_of_the_same_requests_for_long() -> None:
    """Twenty requests and the same twenty over and over are one workload."""
    short = read_trace(EXAMPLES / "azure_conv_2023_excerpt.csv", limit=20)
    arrivals = [
        replace(arrival, at_s=arrival.at_s + copy * short.duration_s)
        for copy in range(100)
        for arrival in short.arrivals
    ]
    long = replace(short, arrivals=arrivals, duration_s=100 * short.duration_s)
    assert capacity(short) == pytest.approx(capacity(long), rel=0.05)


def test_copies_find_no_prefix_of_each_other() -> None:
    """Prompts that share nothing within the trace are computed each time."""
    own = [
        Arrival(
            at_s=0.0,
            tenant_id="a",
            num_prompt_tokens=2_048,
            num_output_tokens=8,
            block_ids=tuple(range(4 * n, 4 * n + 4)),
        )
        for n in range(10)
    ]
    plain = [replace(arrival, block_ids=()) for arrival in own]
    named, unnamed = (
        capacity(Workload(name="w", arrivals=arrivals, duration_s=1.0)) for arrivals in (own, plain)
    )
    assert named == pytest.approx(unnamed, rel=0.01)


def test_who_gives_up_does_not_count() -> None:
    """Cancelled requests are measured as if they were waited for."""
    patient = Arrival(at_s=0.0, tenant_id="a", num_prompt_tokens=500, num_output_tokens=50)
    hasty = replace(patient, cancel_after_s=0.01, cancel_after_tokens=1, patience_s=0.01)
    first, second = (
        capacity(Workload(name="w", arrivals=[arrival], duration_s=1.0))
        for arrival in (patient, hasty)
    )
    assert first == second
