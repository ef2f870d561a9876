"""The suite that compares ways of batching, at a small size."""

from __future__ import annotations

import pytest

from scheduler.batching.baselines import BASELINES
from scheduler.simulator.batching_suite import (
    CONTINUOUS,
    NUM_RUNS,
    BatchingSuiteOptions,
    run,
)
from scheduler.simulator.suite import SuiteResult

SMALL = BatchingSuiteOptions(requests=60, rows=6)


@pytest.fixture(scope="module")
def result() -> SuiteResult:
    return run(lambda _: None, SMALL)


def test_every_way_is_measured_and_the_order_is_as_expected(result: SuiteResult) -> None:
    """Padding costs most and continuous batching least; chunks keep the gaps short."""
    figures = result.figures
    for name in BASELINES:
        assert figures[f"continuous_over_{name}"].value > 1
        assert figures[f"continuous_over_{name}_ttft_p99_speedup"].value > 1
    assert figures["continuous_over_padded"].value > figures["continuous_over_static"].value
    assert figures["continuous_over_sorted"].value < figures["continuous_over_static"].value
    assert figures["chunked_max_gap_speedup"].value > 1
    assert [row[0] for row in result.rows] == [*CONTINUOUS, *BASELINES]
    assert all(len(row) == len(result.header) for row in result.rows)


def test_all_tokens_are_drawn_whatever_the_batching(result: SuiteResult) -> None:
    """Everyone is served to the end, so rates are of the same work."""
    samples = result.samples.values()
    assert len({round(of["output_tokens_per_s"] * of["seconds_at_once"]) for of in samples}) == 1


def test_runs_repeat_exactly_and_are_told_of(result: SuiteResult) -> None:
    """The suite is deterministic, and names each run as it is done."""
    names: list[str] = []
    assert run(names.append, SMALL).samples == result.samples
    assert len(names) == len(set(names)) == NUM_RUNS
