"""What early refusals are worth in overload: goodput, and promises kept to those taken in.

Lengths of Azure's conversations come Poisson from eight tenants, each promised its first token in
2 s, on Llama-3-8B and one A100, at multiples of what the engine sustains. Steps take just what
the scheduler's model says, or up to a fifth more or less, or the model is a fifth off and never
learns. Beside it, the same overload under gates that count requests or tokens, or only drop what
is late already. All that look at tokens take short prompts first, so goodput is given in tokens
too, and by tenths of the prompts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

from engine.contract import EngineInfo
from engine.step_cost import StepCost, StepFeatures
from scheduler.config import AdmissionConfig, FairnessConfig, SchedulerConfig
from scheduler.core import Scheduler
from scheduler.figure import Figure, at_least
from scheduler.learn import StepModel
from scheduler.request import Slo
from scheduler.simulator.capacity import measure_capacity
from scheduler.simulator.metrics import measure, quantiles, ratio
from scheduler.simulator.noise import noisy
from scheduler.simulator.records import Run
from scheduler.simulator.report import number, percent, seconds
from scheduler.simulator.run import simulate
from scheduler.simulator.setup import Machine, load_machine
from scheduler.simulator.suite import OnRun, SuiteResult
from scheduler.simulator.synthetic import azure_lengths, poisson
from scheduler.simulator.workload import Arrival, Workload

_TTFT_S = 2.0
_NUM_TENANTS = 8
_OVERLOAD = 1.6
_LOADS = (0.6, 0.8, 0.9, 1.0, 1.1, 1.3, _OVERLOAD)
_STEP_ERROR = 0.2
_GOODPUT_SHARE = 0.9
_KEPT_EXACT = 0.99
_KEPT_NOISY = 0.95
_NUM_DECILES = 10
_OPEN = AdmissionConfig(predict_ttft=False, max_num_queued=1_000_000, drop_expired=False)
_GATES = {
    "none refused": _OPEN,
    "128 requests": replace(_OPEN, max_num_queued=128),
    "16 requests": replace(_OPEN, max_num_queued=16),
    # Half of the bound is kept free for newcomers.
    "8,192 tokens": replace(_OPEN, max_queued_tokens=16_384),
    "late ones dropped": replace(_OPEN, drop_expired=True),
}
_MODEL_FACTORS = (1 - _STEP_ERROR, 1 + _STEP_ERROR)
NUM_RUNS = len(_LOADS) + 1 + len(_MODEL_FACTORS) + len(_GATES)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionSuiteOptions:
    """Size the suite."""

    duration_s: float = 600.0
    seed: int = 42


_DEFAULTS = AdmissionSuiteOptions()


def run(on_run: OnRun, options: AdmissionSuiteOptions = _DEFAULTS) -> SuiteResult:
    """Run all loads with an exact model, and the overload with errors and with other gates."""
    result = SuiteResult(
        header=("", "load", "offered/s", "goodput/s", "tokens/s", "refused", "kept", "TTFT p99")
    )
    machine = replace(load_machine("a100-llama-3-8b"), depth=1)
    at_capacity_rps = _capacity_rps(machine, options)
    goodput: dict[float, float] = {}
    done: dict[float, Run] = {}
    for load in _LOADS:
        workload = _workload(load * at_capacity_rps, options)
        done[load] = simulate(machine, _config(), workload)
        goodput[load] = _show("predicted", load, done[load], result)
        on_run(f"load {load}")
    overload = _workload(_OVERLOAD * at_capacity_rps, options)
    with_errors = [
        simulate(
            noisy(machine, _STEP_ERROR, seed=options.seed), _config(), overload, prior=machine.cost
        )
    ]
    _show("steps ±20 %", _OVERLOAD, with_errors[0], result)
    on_run("step errors")
    for factor in _MODEL_FACTORS:
        open_with = partial(_open_stubborn, cost=machine.cost, factor=factor)
        with_errors.append(simulate(machine, _config(), overload, open_with=open_with))
        _show(f"model ×{factor:g}", _OVERLOAD, with_errors[-1], result)
        on_run(f"model ×{factor:g}")
    for name, gate in _GATES.items():
        gated = simulate(machine, replace(_without_loans(), admission=gate), overload)
        rate = _show(name, _OVERLOAD, gated, result)
        slug = name.replace(" ", "_").replace(",", "")
        result.figures[f"goodput_{slug}_rps"] = Figure(rate, "requests/s")
        on_run(name)
    peak = max(goodput.values())
    result.figures |= {
        "capacity_rps": Figure(at_capacity_rps, "requests/s"),
        "goodput_peak_rps": Figure(peak, "requests/s"),
        "goodput_at_1_6_share_of_peak": at_least(
            goodput[_OVERLOAD] / peak, _GOODPUT_SHARE, "share"
        ),
        "goodput_tokens_at_1_6_share_of_peak": Figure(
            _goodput_tokens(done[_OVERLOAD]) / max(map(_goodput_tokens, done.values())), "share"
        ),
        "accepted_in_time_share": at_least(min(map(kept, done.values())), _KEPT_EXACT, "share"),
        "accepted_in_time_step_error_20_share": at_least(
            kept(with_errors[0]), _KEPT_NOISY, "share"
        ),
        "accepted_in_time_model_error_20_share": at_least(
            min(map(kept, with_errors[1:])), _KEPT_NOISY, "share"
        ),
    }
    return result


def kept(done: Run) -> float:
    """Return the share of those taken in whose first token came in time."""
    taken = [record for record in done.records if record.reject is None]
    return sum(record.has_begun and record.ttft_s <= _TTFT_S for record in taken) / len(taken)


def _config() -> SchedulerConfig:
    return SchedulerConfig(fairness=FairnessConfig(policy="vtc"), prefix_caching=False)


def _without_loans() -> SchedulerConfig:
    """Show the other gates alone: who lends passes those by who are late already."""
    config = _config()
    return replace(config, fairness=replace(config.fairness, borrow_tokens=0.0))


class _StubbornModel(StepModel):
    """Be off by a factor for good."""

    def __init__(self, cost: StepCost, factor: float) -> None:
        super().__init__(cost)
        self._factor = factor

    def price_s(self, features: StepFeatures) -> float:
        return self._factor * super().price_s(features)

    def observe(self, features: StepFeatures, step_s: float) -> None:
        """Learn nothing."""


def _open_stubborn(
    info: EngineInfo, config: SchedulerConfig, *, cost: StepCost, factor: float
) -> Scheduler:
    return Scheduler(info, config, step_model=_StubbornModel(cost, factor))


def _capacity_rps(machine: Machine, options: AdmissionSuiteOptions) -> float:
    sample = _workload(5.0, options)
    tokens_per_s = measure_capacity(machine, _config(), sample)
    return tokens_per_s * len(sample.arrivals) / sample.num_tokens


def _workload(rate: float, options: AdmissionSuiteOptions) -> Workload:
    def make(index: int, at_s: float, prompt: int, output: int) -> Arrival:
        return Arrival(
            at_s=at_s,
            tenant_id=f"tenant-{index % _NUM_TENANTS}",
            num_prompt_tokens=prompt,
            num_output_tokens=output,
            slo=Slo(ttft_s=_TTFT_S),
        )

    return poisson(
        "azure-poisson",
        rate=rate,
        duration_s=options.duration_s,
        lengths=azure_lengths(),
        seed=options.seed,
        make=make,
    )


def _goodput_tokens(done: Run) -> float:
    good = sum(record.arrival.num_tokens for record in done.records if record.meets_slo)
    return good / done.workload.duration_s


def _show(name: str, load: float, done: Run, result: SuiteResult) -> float:
    """Add a row and a sample; returns requests a second that were served in time."""
    figures: dict[str, Any] = measure(done)
    span_s = done.workload.duration_s
    result.samples[f"{name}/{load}"] = {
        key: figures[key]
        for key in (
            "requests",
            "rejected",
            "expired",
            "goodput_rps",
            "goodput_tokens_per_s",
            "tokens_per_s",
            "ttft_s",
        )
    } | {"accepted_in_time_share": kept(done), "prompt_length_deciles": _deciles(done)}
    result.rows.append(
        (
            name,
            number(load),
            number(figures["requests"] / span_s),
            number(figures["goodput_rps"]),
            number(figures["goodput_tokens_per_s"]),
            number(figures["rejected"]),
            percent(kept(done)),
            seconds(figures["ttft_s"]["p99"]),
        )
    )
    goodput: float = figures["goodput_rps"]
    return goodput


def _deciles(done: Run) -> list[dict[str, Any]]:
    """Say what came of each tenth of the requests, by the length of their prompts."""
    ordered = sorted(done.records, key=lambda record: record.arrival.num_prompt_tokens)
    bounds = [len(ordered) * n // _NUM_DECILES for n in range(_NUM_DECILES + 1)]
    span_s = done.workload.duration_s
    deciles = []
    for part in (ordered[a:b] for a, b in pairwise(bounds) if a < b):
        good = [record for record in part if record.meets_slo]
        taken = [record for record in part if record.reject is None]
        in_time = [record for record in taken if record.has_begun and record.ttft_s <= _TTFT_S]
        deciles.append(
            {
                "max_prompt_tokens": part[-1].arrival.num_prompt_tokens,
                "accepted_share": len(taken) / len(part),
                "accepted_in_time_share": ratio(len(in_time), len(taken)),
                "goodput_rps": len(good) / span_s,
                "goodput_tokens_per_s": sum(r.arrival.num_tokens for r in good) / span_s,
                "ttft_p99_s": quantiles(r.ttft_s for r in taken if r.has_begun)["p99"],
            }
        )
    return deciles
