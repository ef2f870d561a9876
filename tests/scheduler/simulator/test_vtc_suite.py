"""The VTC paper's workloads: generated as the artifact does, with the paper's results."""

from __future__ import annotations

import pytest

from scheduler.simulator.compat import vtc_config, vtc_machine
from scheduler.simulator.fairness import service_of_tenants
from scheduler.simulator.metrics import measure
from scheduler.simulator.run import simulate
from scheduler.simulator.vtc_suite import NUM_RUNS, REFERENCES
from scheduler.simulator.vtc_traces import late_joiner, vtc_workload, workload_names


@pytest.mark.parametrize(
    ("name", "counts", "first_s"),
    [
        # Phases are drawn by the legacy generator from seed 42: 0.3745, 0.9507, ….
        ("overload", [540, 1080], 1 / 3.0 * (1 + 0.9507143064)),
        ("overload-multi", [144] * 3 + [216] * 5, 1 / 0.6 * (1 + 0.0580836122)),
        ("proportional", [150, 300, 900], None),
        ("on_off_less", [150, 1200], None),
        ("on_off_overload", [600, 1800], None),
        ("increase", [300, 660], None),
        ("dist_shift", [90 + 300 + 150, 600 + 300 + 450], None),
    ],
)
def test_arrivals_are_the_artifacts(name: str, counts: list[int], first_s: float | None) -> None:
    """Each client sends as often as its rate says, less the minutes in which it is off."""
    workload = vtc_workload(name)
    tenants = [arrival.tenant_id for arrival in workload.arrivals]
    got = [tenants.count(f"client-{n}") for n in range(len(counts))]
    assert got == pytest.approx(counts, abs=2)
    times = [arrival.at_s for arrival in workload.arrivals]
    assert times == sorted(times)
    if first_s is not None:
        assert times[0] == pytest.approx(first_s)


def test_poisson_lengths_are_swapped_between_clients() -> None:
    """One client sends long prompts with short answers, the other the other way around."""
    lengths = {
        (a.tenant_id, a.num_prompt_tokens, a.num_output_tokens)
        for a in vtc_workload("poisson_short_long_2").arrivals
    }
    assert lengths == {("client-0", 512, 32), ("client-1", 32, 512)}
    arrivals = vtc_workload("poisson_short_long").arrivals
    assert len(arrivals) == int(9.5 * 600)
    assert arrivals[-1].at_s == pytest.approx(600, rel=0.05)


def test_every_workload_has_a_reference() -> None:
    """The suite runs all that can be generated, each under two policies, and the late joiner."""
    assert set(REFERENCES) == set(workload_names())
    assert 2 * len(workload_names()) + 1 == NUM_RUNS


def test_vtc_is_fair_where_fcfs_is_not() -> None:
    """In two minutes of the paper's first workload VTC's service difference is far below FCFS's."""
    workload = vtc_workload("overload").first(540)
    figures = {
        policy: measure(simulate(vtc_machine(), vtc_config(policy), workload))
        for policy in ("vtc", "fcfs")
    }
    reference = REFERENCES["overload"]
    assert figures["vtc"]["service_difference"]["avg"] <= 1.25 * reference.vtc_avg
    assert figures["fcfs"]["service_difference"]["avg"] >= 0.8 * (reference.fcfs_avg or 0)
    assert figures["vtc"]["tokens_per_s"] == pytest.approx(reference.tokens_per_s, rel=0.08)


def test_late_joiner_gets_an_equal_share_at_once() -> None:
    """A client that comes to an overloaded engine is served as much as the other from then on."""
    run = simulate(vtc_machine(), vtc_config("vtc"), late_joiner(), until_s=400.0)
    before = service_of_tenants(run, until_s=299.0)
    assert before[0] > 300_000
    assert len(run.tenant_ids) == 2
    service = service_of_tenants(run, since_s=300.0, until_s=400.0)
    assert service[1] == pytest.approx(service[0], rel=0.05)
