"""Figures of a run, under the names that are promised."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from scheduler.request import FinishReason, RejectCode, Slo
from scheduler.simulator.metrics import measure, quantiles
from scheduler.simulator.records import Record, Run
from scheduler.simulator.report import render_run, seconds, table
from scheduler.simulator.workload import Arrival, Workload

PROMISED = {
    "requests",
    "completed",
    "rejected",
    "virtual_seconds",
    "tokens_per_s",
    "goodput_rps",
    "slo_attainment",
    "jain",
    "service_difference",
    "interval_service_difference_max",
    "ttft_s",
    "tpot_s",
    "max_gap_s",
    "tenants",
}


def make_run() -> Run:
    """Two tenants, ten requests, in 10 s: two late, one refused, one expired."""
    run = Run(
        Workload(name="w", arrivals=[], duration_s=10.0),
        tenant_ids=["a", "b"],
        weights=[1.0, 2.0],
        end_s=20.0,
        num_steps=10,
        num_rows=25,
    )
    for n in range(10):
        arrival = Arrival(
            at_s=float(n),
            tenant_id="ab"[n % 2],
            num_prompt_tokens=10 * (n + 1),
            num_output_tokens=3,
            slo=Slo(ttft_s=1.0),
        )
        record = Record(arrival, n % 2)
        run.records.append(record)
        if n == 0:
            record.reject = RejectCode.OVERLOADED
        elif n == 1:
            record.finish_reason = FinishReason.EXPIRED
        else:
            record.first_s = n + (2.0 if n < 4 else 0.5)
            record.last_s = record.finished_s = record.first_s + 1.0
            record.num_output_tokens = 3
            record.max_gap_s = 0.75
            record.finish_reason = FinishReason.LENGTH
            run.service.add(record.first_s, n % 2, 10.0 * (n + 1) + 6)
    return run


def test_figures_are_what_was_recorded() -> None:
    """Counts, rates and shares follow from the records alone."""
    figures = measure(make_run())
    assert figures.keys() >= PROMISED
    assert (figures["requests"], figures["completed"]) == (10, 8)
    assert (figures["rejected"], figures["expired"]) == (1, 1)
    assert figures["goodput_rps"] == pytest.approx(6 / 10)
    assert figures["slo_attainment"] == pytest.approx(6 / 9)
    assert figures["tokens_per_s"] == pytest.approx((520 + 8 * 3) / 20)
    assert figures["ttft_s"]["p50"] == pytest.approx(0.5)
    assert figures["tpot_s"] == {"p50": 0.5, "p90": 0.5, "p99": 0.5}
    assert figures["max_gap_s"]["p99"] == 0.75
    assert figures["rows_per_step"] == 2.5
    assert sum(part["requests"] for part in figures["prompt_length_deciles"]) == 10


def test_tenants_are_told_apart() -> None:
    """Each has its own requests, refusals and share; the most served comes first."""
    tenants = measure(make_run())["tenants"]
    assert [tenant["tenant"] for tenant in tenants] == ["b", "a"]
    assert [tenant["rejected"] for tenant in tenants] == [0, 1]
    assert sum(tenant["service_share"] for tenant in tenants) == pytest.approx(1.0)


def test_run_of_nothing_has_figures_too() -> None:
    """What cannot be told is null, never a made-up number, and never NaN."""
    empty = Run(Workload(name="w", arrivals=[], duration_s=0.0))
    figures = measure(empty)
    assert figures["slo_attainment"] is None
    assert figures["ttft_s"] == {"p50": None, "p90": None, "p99": None}
    assert "NaN" not in json.dumps(figures)


def test_where_nothing_is_promised_nothing_is_kept() -> None:
    """A tenant of no promises has none to keep, beside one that has; the report says so."""
    run = make_run()
    for record in run.records[1::2]:
        record.arrival = replace(record.arrival, slo=Slo())
    figures = measure(run)
    kept = {tenant["tenant"]: tenant["slo_attainment"] for tenant in figures["tenants"]}
    assert kept["b"] is None
    assert kept["a"] is not None
    context = {"trace": "w", "policy": "vtc", "load": 1.2, "machine": "cpu-demo"}
    [row] = [one for one in render_run({**context, **figures}).splitlines() if one[:2] == "b "]
    assert "none promised" in row
    for record in run.records:
        record.arrival = replace(record.arrival, slo=Slo())
    figures = measure(run)
    assert figures["slo_attainment"] is None
    text = render_run({**context, **figures})
    [row] = [one for one in text.splitlines() if one.startswith("promises kept")]
    assert row.endswith("none promised")


def test_quantiles_interpolate() -> None:
    """Quantiles of 0…100 are their own names."""
    assert quantiles(range(101)) == {"p50": 50.0, "p90": 90.0, "p99": 99.0}


def test_report_reads_as_text() -> None:
    """A person sees the tenants, what was refused, and times in their units."""
    context = {"trace": "w", "policy": "vtc", "load": 1.2, "machine": "cpu-demo"}
    text = render_run({**context, **measure(make_run())})
    assert "w under vtc, load 1.2, on cpu-demo: 8 of 10 requests completed" in text
    assert "500 ms" in text
    assert "\nb " in text
    assert "prompt tokens  requests" in text
    assert not any(line.endswith(" ") for line in text.splitlines())


def test_tables_align() -> None:
    """The first column stands to the left, the others to the right."""
    assert table(("a", "bb"), [("long", "1")]) == "a     bb\nlong   1"
    assert [seconds(value) for value in (None, 0.0123, 2.5, 4321.0)] == [
        "–",
        "12 ms",
        "2.50 s",
        "4,321 s",
    ]
