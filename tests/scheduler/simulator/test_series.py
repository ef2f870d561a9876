"""Curves of a run say what its logs say."""

from __future__ import annotations

import pytest

from scheduler.simulator.records import Record, Run
from scheduler.simulator.series import queue_curve, service_curves, ttft_curve
from scheduler.simulator.workload import Arrival, Workload


def make_run() -> Run:
    workload = Workload(name="w", arrivals=[], duration_s=60.0)
    run = Run(workload, tenant_ids=["a", "b"], weights=[1.0, 1.0], end_s=120.0)
    for second in range(120):
        run.service.add(second + 0.5, 0, 10.0)
        run.service.add(second + 0.5, 1, 30.0)
    for ttft_s in (1.0, 2.0, 3.0, 4.0):
        arrival = Arrival(at_s=0.0, tenant_id="a", num_prompt_tokens=1, num_output_tokens=1)
        record = Record(arrival, 0)
        record.first_s, record.num_output_tokens = ttft_s, 1
        run.records.append(record)
        run.queue.add(0.0, 0, 1)
        run.queue.add(10 * ttft_s, 0, -1)
    order = sorted(range(8), key=lambda n: run.queue.times_s[n])
    for name in ("times_s", "tenants", "changes"):
        column = getattr(run.queue, name)
        column[:] = type(column)(column.typecode, [column[n] for n in order])
    return run


def test_service_is_a_rate_the_most_served_first() -> None:
    """A steady service is a flat line at its rate."""
    first, second = service_curves(make_run())
    assert (first.label, second.label) == ("b", "a")
    assert first.y == pytest.approx([30.0] * len(first.y))
    assert second.y == pytest.approx([10.0] * len(second.y))


def test_ttft_curve_ends_at_one() -> None:
    """Shares rise by one request each to all of them."""
    curve = ttft_curve(make_run())
    assert list(curve.x) == [1.0, 2.0, 3.0, 4.0]
    assert list(curve.y) == [0.25, 0.5, 0.75, 1.0]


def test_queue_curve_counts_who_waits() -> None:
    """Four wait at first, one leaves every ten seconds."""
    curve = queue_curve(make_run())
    depth = dict(zip(curve.x, curve.y, strict=True))
    assert [depth[second] for second in (0.0, 5.0, 15.0, 25.0, 45.0)] == [4, 4, 3, 2, 0]
