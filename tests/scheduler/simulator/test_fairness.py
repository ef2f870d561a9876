"""The measures of fairness give what is computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler.request import Band
from scheduler.simulator.fairness import (
    entitlements,
    fair_shares,
    interval_service_difference,
    jain,
    service_differences,
    service_of_tenants,
)
from scheduler.simulator.records import Record, Run
from scheduler.simulator.workload import Arrival, Workload


def make_run(*, weights: tuple[float, ...] = (1.0, 1.0), duration_s: float = 120.0) -> Run:
    workload = Workload(name="w", arrivals=[], duration_s=duration_s)
    names = [f"t{n}" for n in range(len(weights))]
    return Run(workload, tenant_ids=names, weights=list(weights))


def log(run: Run, *events: tuple[float, int, float]) -> None:
    for event in events:
        run.service.add(*event)


def wait(run: Run, *events: tuple[float, int, int]) -> None:
    for event in events:
        run.queue.add(*event)


def test_drift_counts_only_while_both_wait() -> None:
    """What one is served while the other waits for nothing is no drift."""
    run = make_run()
    wait(run, (0.0, 0, 1), (5.0, 1, 1), (9.0, 1, -1))
    log(run, (1.0, 0, 1000.0), (6.0, 0, 10.0), (7.0, 0, 10.0), (8.0, 1, 15.0), (9.5, 0, 500.0))
    assert interval_service_difference(run) == 20.0


def test_drift_goes_either_way_and_by_weight() -> None:
    """The largest swing counts, in service divided by weight, to the end of the log."""
    run = make_run(weights=(1.0, 2.0))
    wait(run, (0.0, 0, 1), (0.0, 1, 1))
    log(run, (1.0, 0, 30.0), (2.0, 1, 100.0), (3.0, 1, 20.0))
    assert interval_service_difference(run) == 60.0


def test_drift_of_those_who_never_wait_together_is_unknown() -> None:
    """No two tenants waited at once: there is nothing to compare."""
    run = make_run()
    wait(run, (0.0, 0, 1), (1.0, 0, -1), (2.0, 1, 1), (3.0, 1, -1))
    log(run, (1.0, 0, 10.0), (3.0, 1, 10.0))
    assert interval_service_difference(run) is None


def test_fair_shares_pour_water() -> None:
    """The small demand is met, the others share the rest by weight."""
    shares = fair_shares(np.array([10.0, 100.0, 100.0]), np.array([1.0, 1.0, 3.0]), 90.0)
    assert shares.tolist() == pytest.approx([10.0, 20.0, 60.0])
    assert fair_shares(np.array([5.0, 5.0]), np.array([1.0, 1.0]), 90.0).tolist() == [5.0, 5.0]


def record(tenant: int, *, at_s: float, first_s: float, last_s: float, tokens: int) -> Record:
    arrival = Arrival(
        at_s=at_s, tenant_id=f"t{tenant}", num_prompt_tokens=0, num_output_tokens=tokens
    )
    made = Record(arrival, tenant)
    made.first_s, made.last_s, made.num_output_tokens = first_s, last_s, tokens
    return made


def test_service_difference_is_of_the_worse_served_who_asked_for_more() -> None:
    """In each window of 60 s a tenant counts by its distance from the best, or from its demand."""
    run = make_run(duration_s=60.0)
    for second in range(-30, 90):
        run.records.append(record(0, at_s=second, first_s=second, last_s=second + 1.0, tokens=100))
        # Served 10 tokens/s, 20 weighted, while it asks for 50, 100 weighted.
        slow = record(1, at_s=second, first_s=second, last_s=second + 1.0, tokens=10)
        slow.arrival = Arrival(
            at_s=second, tenant_id="t1", num_prompt_tokens=0, num_output_tokens=50
        )
        run.records.append(slow)
    differences = service_differences(run)
    assert len(differences) == 19
    # One boundary more of arrivals falls into a closed window of 60 s.
    assert differences == pytest.approx([80.0] * 19, rel=0.05)


def test_jain_is_one_where_shares_are_fair() -> None:
    """Equal service for equal demand is 1; all for one of two who ask is a half."""
    for served, index in (((50.0, 50.0), 1.0), ((100.0, 0.0), 0.5), ((75.0, 25.0), 0.8)):
        run = make_run()
        run.records = [record(n, at_s=0.0, first_s=0.0, last_s=1.0, tokens=100) for n in range(2)]
        log(run, (1.0, 0, served[0]), (1.0, 1, served[1]))
        assert jain(run) == pytest.approx(index)


def test_service_is_added_up_within_its_time() -> None:
    """Only what was served from and until the given times counts."""
    run = make_run()
    log(run, (1.0, 0, 1.0), (2.0, 1, 10.0), (3.0, 0, 100.0))
    assert service_of_tenants(run).tolist() == [101.0, 10.0]
    assert service_of_tenants(run, since_s=2.0).tolist() == [100.0, 10.0]
    assert service_of_tenants(run, until_s=2.0).tolist() == [1.0, 10.0]


def test_tenants_of_an_organisation_are_entitled_to_one_share() -> None:
    """Half is for the organisation and half for who has none; in it, tenants share by weight."""
    run = make_run(weights=(1.0, 3.0, 5.0, 1.0))
    run.organisation_ids = ["x", "x", "", "y"]
    for tenant, num_tokens in enumerate((9_000, 9_000, 9_000, 100)):
        arrival = Arrival(
            at_s=0.0,
            tenant_id=f"t{tenant}",
            num_prompt_tokens=num_tokens,
            num_output_tokens=0,
            band=Band.DEFAULT,
        )
        run.records.append(Record(arrival=arrival, tenant=tenant))
    log(run, (1.0, 0, 6_100.0))
    # Of 6,100 the last asks for 100; a tenant of none weighs five times an organisation.
    assert entitlements(run).tolist() == pytest.approx([250.0, 750.0, 5_000.0, 100.0])


def test_drift_is_between_organisations() -> None:
    """Two tenants of one owner that are served unlike are its own affair."""
    run = make_run(weights=(1.0, 1.0, 1.0))
    run.organisation_ids = ["x", "x", ""]
    wait(run, (0.0, 0, 1), (0.0, 1, 1), (0.0, 2, 1))
    log(run, (0.5, 1, 10.0), (1.0, 0, 50.0), (2.0, 2, 40.0), (3.0, 0, 30.0))
    wait(run, (4.0, 0, -1), (4.0, 1, -1), (4.0, 2, -1))
    # Level, then 10, 60, 20 and 50 ahead.
    assert interval_service_difference(run) == pytest.approx(60.0)
    run.organisation_ids = []
    assert interval_service_difference(run) == pytest.approx(80.0)
