"""How much load three kinds of promises bear: deadlines and fitted chunks, beside first come.

Source: the evaluation of Niyama (Goel et al., 2025) as its artifact has it: lengths of Azure's
conversations, Poisson arrivals, a third of them interactive (first token in 6 s, then one every
50 ms), the others promised an end in 600 s and in 1,800 s, on Llama-3-8B and one A100. A run lasts
twice the longest promise, or what is put off would not be seen to be late.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scheduler.config import AdmissionConfig, ComposerConfig, FairnessConfig, SchedulerConfig
from scheduler.figure import Figure, at_least, at_most
from scheduler.request import Slo
from scheduler.simulator.metrics import measure, quantiles
from scheduler.simulator.records import Record, Run
from scheduler.simulator.report import number, percent, seconds
from scheduler.simulator.run import simulate
from scheduler.simulator.setup import Machine, load_machine
from scheduler.simulator.suite import OnRun, SuiteResult
from scheduler.simulator.synthetic import azure_lengths, poisson
from scheduler.simulator.workload import Arrival, Workload

INTERACTIVE = Slo(ttft_s=6.0, tpot_s=0.05)
_TTLT_S = (600.0, 1_800.0)
# The artifact takes 150 tokens for an answer whose length nobody knows.
_EXPECTED_OUTPUT_S = 150 * 0.1
_MAX_VIOLATIONS = 0.01
_LOAD_RATIO = 1.3
_MAX_GAP_S = 0.060
_MAX_GAP_BOUND_S = 0.066
_NUM_KEPT_ROUNDS = 5
NUM_RUNS = 2 * _NUM_KEPT_ROUNDS + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SloSuiteOptions:
    """Size the suite; loads are looked for between `least_rps` and `most_rps`."""

    duration_s: float = 3_600.0
    least_rps: float = 2.5
    most_rps: float = 8.0
    rounds: int = _NUM_KEPT_ROUNDS
    seed: int = 42


_DEFAULTS = SloSuiteOptions()


def run(on_run: OnRun, options: SloSuiteOptions = _DEFAULTS) -> SuiteResult:
    """Find by bisection what both ways sustain, then bound the gap in the better one's replay."""
    result = SuiteResult(
        header=("", "requests/s", "violations", "TTFT p99", "TPOT p99", "gap p99", "tokens/s")
    )
    fixed = _sustained("fcfs-256", fixed_chunk_config(), options, result, on_run)
    dynamic = _sustained("edf-dynamic", dynamic_chunk_config(), options, result, on_run)
    result.figures["fcfs_256_sustained_rps"] = Figure(fixed, "requests/s")
    result.figures["edf_dynamic_sustained_rps"] = Figure(dynamic, "requests/s")
    ratio = dynamic / fixed
    result.figures["edf_dynamic_over_fcfs_256_load_ratio"] = at_least(ratio, _LOAD_RATIO, "ratio")
    bounded = _run(dynamic_chunk_config(), dynamic, options, max_gap_s=_MAX_GAP_S)
    gap_s = _show("edf-dynamic, gap 60 ms", dynamic, bounded, result)
    result.figures["max_gap_60ms_gap_p99_s"] = at_most(gap_s, _MAX_GAP_BOUND_S, "s")
    on_run("max gap")
    return result


def three_tiers(rate: float, options: SloSuiteOptions, *, max_gap_s: float | None) -> Workload:
    """Mix the three kinds, in turns; a gap may be promised to the interactive ones besides."""

    def make(index: int, at_s: float, prompt: int, output: int) -> Arrival:
        kind = index % 3
        arrival = Arrival(
            at_s=at_s,
            tenant_id=("interactive", "600s", "1800s")[kind],
            num_prompt_tokens=prompt,
            num_output_tokens=output,
            slo=replace(INTERACTIVE, max_gap_s=max_gap_s),
        )
        if not kind:
            return arrival
        ttlt_s = _TTLT_S[kind - 1]
        return replace(arrival, slo=Slo(ttft_s=ttlt_s - _EXPECTED_OUTPUT_S), ttlt_s=ttlt_s)

    return poisson(
        "three-tiers",
        rate=rate,
        duration_s=options.duration_s,
        lengths=azure_lengths(),
        seed=options.seed,
        make=make,
    )


def fixed_chunk_config() -> SchedulerConfig:
    """Take everyone in the order of arrival, with 256 tokens a step."""
    return _patient("fcfs", ComposerConfig(dynamic_chunk=False, max_num_batched_tokens=256))


def dynamic_chunk_config() -> SchedulerConfig:
    """Take everyone by deadline, with as many tokens a step as the promises leave time for."""
    return _patient("edf", ComposerConfig(max_num_batched_tokens=2_552))


def _patient(policy: str, composer: ComposerConfig) -> SchedulerConfig:
    """Refuse nobody and drop nothing, so that what is late is counted as late."""
    return SchedulerConfig(
        fairness=FairnessConfig(policy=policy),
        composer=composer,
        admission=AdmissionConfig(predict_ttft=False, max_num_queued=1_000_000, drop_expired=False),
        prefix_caching=False,
    )


def _machine() -> Machine:
    return replace(load_machine("a100-llama-3-8b"), depth=1, max_num_seqs=128)


def _sustained(
    name: str, config: SchedulerConfig, options: SloSuiteOptions, result: SuiteResult, on_run: OnRun
) -> float:
    """Bisect the highest rate at which at most 1 % of the requests break a promise."""

    def holds(rate: float) -> bool:
        done = _run(config, rate, options, bisects=True)
        _show(name, rate, done, result)
        on_run(f"{name} at {rate:.2f}")
        return violations(done) <= _MAX_VIOLATIONS

    return bisect(holds, options.least_rps, options.most_rps, options.rounds)


def bisect(holds: Callable[[float], bool], least: float, most: float, rounds: int) -> float:
    """Find the highest value that holds, in geometric halves; the least one is taken to hold."""
    for _ in range(rounds):
        middle = (least * most) ** 0.5
        if holds(middle):
            least = middle
        else:
            most = middle
    return least


def violations(done: Run) -> float:
    """Return the share of all requests that have ended with a promise broken."""
    ended = [record for record in done.records if record.finish_reason is not None]
    return sum(not record.meets_slo for record in ended) / len(done.workload.arrivals)


def _run(
    config: SchedulerConfig,
    rate: float,
    options: SloSuiteOptions,
    *,
    max_gap_s: float | None = None,
    bisects: bool = False,
) -> Run:
    workload = three_tiers(rate, options, max_gap_s=max_gap_s)
    return simulate(_machine(), config, workload, on_end=_Judge(workload) if bisects else None)


class _Judge:
    """End a run as soon as it is sure that too many promises will have been broken."""

    def __init__(self, workload: Workload) -> None:
        self._allowed = _MAX_VIOLATIONS * len(workload.arrivals)
        self._num_broken = 0

    def __call__(self, ended: Sequence[Record]) -> bool:
        self._num_broken += sum(not record.meets_slo for record in ended)
        return self._num_broken > self._allowed


def _show(name: str, rate: float, done: Run, result: SuiteResult) -> float:
    """Add a row and a sample; returns the 99th percentile of the interactive ones' longest gaps."""
    figures: dict[str, Any] = measure(done)
    tenants = {tenant["tenant"]: tenant for tenant in figures.pop("tenants")}
    interactive = tenants["interactive"]
    gap_s = quantiles(
        r.max_gap_s for r in done.records if r.arrival.slo.tpot_s is not None and r.has_begun
    )["p99"]
    assert gap_s is not None
    broken = violations(done)
    # A run that was ended early has shown no more than that.
    is_whole = len(done.records) == len(done.workload.arrivals)
    result.samples[f"{name}/{rate:.3f}"] = {
        "violations": broken if is_whole else None,
        "virtual_seconds": done.end_s,
        "interactive": interactive,
        "tokens_per_s": figures["tokens_per_s"],
    }
    result.rows.append(
        (
            name,
            number(rate),
            percent(broken) if is_whole else f"> {percent(_MAX_VIOLATIONS)}",
            seconds(interactive["ttft_s"]["p99"]),
            seconds(interactive["tpot_s"]["p99"]),
            seconds(gap_s),
            number(figures["tokens_per_s"]),
        )
    )
    return gap_s
