"""Suites run at a small size, tell of each run, and state figures with their goals."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from engine.step_cost import StepFeatures
from scheduler.config import PRESETS
from scheduler.simulator import (
    admission_suite,
    goodput_suite,
    harvest_suite,
    isolation_suite,
    light_suite,
    preemption_suite,
    slo_suite,
)
from scheduler.simulator.contests import CONTESTS, VARIANTS, contested
from scheduler.simulator.metrics import measure
from scheduler.simulator.noise import NoisyCost, noisy
from scheduler.simulator.run import simulate
from scheduler.simulator.setup import load_machine
from scheduler.simulator.suite import SuiteResult
from scheduler.simulator.suites import suites
from scheduler.simulator.synthetic import poisson
from scheduler.simulator.window_part import WindowOptions
from scheduler.simulator.workload import Arrival, Workload


def check(result: SuiteResult, told: list[str], num_runs: int) -> None:
    """Every run is told of, shown in the table, and kept among the samples."""
    assert len(told) == num_runs
    assert len(result.rows) == num_runs
    assert all(len(row) == len(result.header) for row in result.rows)
    assert result.samples
    assert any(figure.goal for figure in result.figures.values())


def test_suites_are_listed_by_name() -> None:
    """What the command line offers."""
    assert set(suites()) >= {"vtc", "slo", "admission", "preemption", "harvest", "isolation"}


@pytest.mark.thorough
def test_admission_suite_keeps_what_it_promises() -> None:
    """In a minute, those taken in get their first token in time; without refusals few do."""
    told: list[str] = []
    options = admission_suite.AdmissionSuiteOptions(duration_s=60.0)
    result = admission_suite.run(told.append, options)
    check(result, told, admission_suite.NUM_RUNS)
    figures = result.figures
    assert figures["accepted_in_time_share"].met
    assert figures["accepted_in_time_step_error_20_share"].met
    assert figures["goodput_at_1_6_share_of_peak"].met
    assert figures["goodput_none_refused_rps"].value < 0.5 * figures["goodput_peak_rps"].value


def test_light_suite_uses_what_may_be_lost_and_no_more() -> None:
    """In seconds, one stream beside a flood is near what the bound on the loss leaves at best."""
    told: list[str] = []
    result = light_suite.run(told.append, light_suite.LightSuiteOptions(duration_s=10.0))
    check(result, told, light_suite.NUM_RUNS)
    goals = {name: figure.met for name, figure in result.figures.items() if figure.goal}
    kinds = ("light_at_20", "light_at_30", "prompts_cut")
    assert goals.keys() >= {f"{kind}_over_least_ratio" for kind in kinds}
    assert goals.keys() >= {
        f"{kind}_tokens_per_s_ratio" for kind in (*kinds, "short_cut", "short_rows_held")
    }
    assert {"short_cut_ttft_ratio", "short_rows_held_ttft_ratio"} <= goals.keys()
    assert {"batch_at_20_tpot_ratio", "batch_tokens_per_s_ratio"} <= goals.keys()
    assert {"promised_cut_in_time_share", "promised_batch_cut_in_time_share"} <= goals.keys()
    assert result.figures["promised_whole_in_time_share"].value < 0.5
    assert all(goals.values()), goals
    assert result.figures["light_tpot_at_0_ratio"].value > 10
    assert result.figures["prompts_whole_tpot_ratio"].value > 10
    assert result.figures["batch_at_0_tpot_ratio"].value > 10


def test_the_least_time_per_token_follows_from_what_may_be_lost() -> None:
    """Nothing to lose leaves the pace of all; all to lose, or a loss of none, that alone."""
    pace = {"alone_s": 0.001, "unheld_s": 0.02, "most_per_s": 5_000.0}
    assert light_suite.least_ratio(**pace, loss=0.0) == pytest.approx(20)
    assert light_suite.least_ratio(**pace, loss=0.8) == pytest.approx(1)
    assert light_suite.least_ratio(**pace, loss=1.0) == pytest.approx(1)
    # A quarter of the time alone is 250 tokens, and 37.5 in the rest.
    assert light_suite.least_ratio(**pace, loss=0.2) == pytest.approx(1_000 / 287.5)


def test_preemption_suite_serves_the_urgent_first() -> None:
    """Urgent requests overtake a full engine at little cost, and everybody ends."""
    told: list[str] = []
    options = preemption_suite.PreemptionSuiteOptions(duration_s=40.0)
    result = preemption_suite.run(told.append, options)
    check(result, told, preemption_suite.NUM_RUNS)
    figures = result.figures
    assert figures["urgent_ttft_p99_s"].value < 2.0
    assert figures["bands_unfinished"].met
    assert figures["bands_preemptions_of_one_request_max"].met
    assert figures["reserve_predicted_unfinished"].met


@pytest.mark.thorough
def test_isolation_suite_runs() -> None:
    """A flood leaves the victim's wait within the goal, which can be missed; keys gain nothing."""
    told: list[str] = []
    options = isolation_suite.IsolationSuiteOptions(
        duration_s=40.0, contest_s=20.0, variants=("plain",)
    )
    result = isolation_suite.run(told.append, options)
    check(result, told, options.num_runs)
    figures = result.figures
    assert figures["victim_ttft_p99_at_10x_s"].met
    assert figures["fcfs_victim_ttft_p99_at_100x_s"].met
    assert figures["service_gain_of_50_keys"].met
    contested = {name for name in figures if name.startswith(tuple(c.name for c in CONTESTS))}
    assert len(contested) == sum(len(c.at_most) + len(c.at_least) for c in CONTESTS)
    assert all(figures[name].met is not None for name in contested)


def test_wait_without_an_end_counts_as_long_as_it_was() -> None:
    """A request of the victim's that never begins is no reason to leave it out."""
    workload = Workload(
        name="w",
        arrivals=[
            Arrival(at_s=0.0, tenant_id="victim", num_prompt_tokens=100, num_output_tokens=1),
            Arrival(at_s=1.0, tenant_id="victim", num_prompt_tokens=100_000, num_output_tokens=1),
        ],
        duration_s=2.0,
    )
    done = simulate(load_machine("a100-llama-3-8b"), PRESETS["mixed"], workload, until_s=3.0)
    result = SuiteResult()
    waited_s = isolation_suite._show("w", done, result)
    assert not done.records[1].has_begun
    assert 1.9 < waited_s <= done.end_s - 1.0


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_of_contests_are_what_they_say(variant: str) -> None:
    """Keys, bursts, cancelled prompts and a storm change what comes, not how much of the other."""
    contest = CONTESTS[1]
    workload = contested(contest, variant, 1.0, 60.0)
    times = [arrival.at_s for arrival in workload.arrivals]
    assert times == sorted(times)
    others = [a for a in workload.arrivals if a.tenant_id == "other"]
    assert len(others) == 60
    assert (len({a.key_id for a in others}) == 50) is (variant == "50_keys")
    assert any(a.cancel_after_s for a in others) is (variant == "cancelled")
    assert all(a.at_s % 60 < 30 for a in others) is (variant == "bursts")
    tenants = {"other", "victim"} | ({"ballast", "urgent"} if variant == "storm" else set())
    assert {a.tenant_id for a in workload.arrivals} == tenants


def test_tenants_of_one_owner_leave_a_victim_its_share() -> None:
    """Two hundred of one organisation do not take what as many by themselves would."""
    contest = next(c for c in CONTESTS if c.name == "tenants_of_one_owner")
    workload = contested(contest, "plain", 1.8, 30.0)
    assert len({a.tenant_id for a in workload.arrivals if a.organisation_id == "crowd"}) == 200
    by_themselves = [replace(arrival, organisation_id="") for arrival in workload.arrivals]
    machine, shares = load_machine("a100-llama-3-8b"), []
    for arrivals in (workload.arrivals, by_themselves):
        run = replace(workload, arrivals=arrivals)
        figures = measure(simulate(machine, PRESETS["mixed"], run, until_s=30.0))
        [own] = [of for of in figures["tenants"] if of["tenant"] == "victim"]
        shares.append(own["service_share"])
        if run.arrivals is workload.arrivals:
            assert own["ttft_s"]["p99"] < 2.5
    assert shares[0] > 10 * shares[1]


@pytest.mark.thorough
def test_harvest_suite_runs() -> None:
    """The backlog takes a good part of what online work leaves, and a window forces work up."""
    told: list[str] = []
    windows = WindowOptions(requests=500, batch_requests=50, flooding_requests=250)
    options = harvest_suite.HarvestSuiteOptions(requests=200, other_requests=100, windows=windows)
    result = harvest_suite.run(told.append, options)
    check(result, told, harvest_suite.NUM_RUNS)
    figures = {name: figure.value for name, figure in result.figures.items()}
    assert figures["harvested_share_of_spare"] > 0.3
    assert figures["window_done_share"] > 0.5 > 0.1 > figures["window_done_unforced_share"]
    # Two seconds of a flood weigh more in so short a run.
    assert figures["window_contested_service_share"] < 0.1


@pytest.mark.thorough
def test_slo_suite_runs() -> None:
    """Two rounds of bisection each, and one run with a bounded gap."""
    told: list[str] = []
    options = slo_suite.SloSuiteOptions(duration_s=60.0, rounds=2)
    result = slo_suite.run(told.append, options)
    check(result, told, 5)
    ratio = result.figures["edf_dynamic_over_fcfs_256_load_ratio"]
    assert ratio.goal == ">= 1.3"


def test_bisection_closes_in_from_both_sides() -> None:
    """The highest value that holds is found to a fraction of the range."""
    assert slo_suite.bisect(lambda x: x <= 3.0, 1.0, 9.0, 12) == pytest.approx(3.0, rel=0.001)
    assert slo_suite.bisect(lambda x: False, 1.0, 9.0, 5) == 1.0


def test_noise_is_even_around_the_profile() -> None:
    """Steps take up to the error more or less, as much as the profile says on average."""
    machine = load_machine("cpu-demo")
    step = StepFeatures(num_prefill_tokens=10, num_decode_tokens=3)
    exact = machine.cost.price_s(step)
    cost = noisy(machine, 0.2, seed=1).cost
    ratios = [cost.price_s(step) / exact for _ in range(2_000)]
    assert 0.8 <= min(ratios) < 0.81
    assert 1.19 < max(ratios) <= 1.2
    assert sum(ratios) / len(ratios) == pytest.approx(1.0, abs=0.01)
    assert NoisyCost("n", cost.small, cost.large, 512, random.Random(0), 0.0).price_s(
        step
    ) == pytest.approx(exact)


def test_poisson_comes_at_its_rate() -> None:
    """Requests come as often as was asked, with lengths from the list, the same for a seed."""

    def make(index: int, at_s: float, prompt: int, output: int) -> Arrival:
        return Arrival(at_s=at_s, tenant_id="t", num_prompt_tokens=prompt, num_output_tokens=output)

    lengths = [(1, 2), (3, 4)]
    first, second = (
        poisson("p", rate=5.0, duration_s=400.0, lengths=lengths, seed=9, make=make)
        for _ in range(2)
    )
    assert first == second
    assert len(first.arrivals) == 2_000
    assert first.duration_s == pytest.approx(400, rel=0.06)
    assert {(a.num_prompt_tokens, a.num_output_tokens) for a in first.arrivals} == set(lengths)


def test_goodput_suite_compares_the_default_in_both_metrics() -> None:
    """At twice the capacity the default keeps more promises than the preset of small steps."""
    told: list[str] = []
    options = goodput_suite.GoodputSuiteOptions(
        requests=250, traces=["servegen_small"], loads=[2.0]
    )
    result = goodput_suite.run(told.append, options)
    check(result, told, 5)
    assert result.figures["goodput_low_latency_ratio"].met
    assert result.figures["goodput_mean_pace_low_latency_ratio"].met
    own, other = (result.samples[f"servegen_small/2/{n}"] for n in ("default", "fcfs"))
    ratio = own["goodput_rps"] / other["goodput_rps"]
    assert result.figures["goodput_fcfs_ratio"].value == pytest.approx(ratio)
    assert own["late_share_of_taken"] <= 0.02
