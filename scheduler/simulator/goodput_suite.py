"""How many requests a second keep all their promises: the default beside other orders.

Traces of two kinds, with tenants and without, come at 0.8 to 2 times the capacity of Llama-3-8B on
one A100, each request promised its first token in 2 s and 100 ms a token. Two readings of the
latter: the artifact's, by which token k is late that comes over `k` paces after the first one was
due, and the usual one, the mean over a request after its first token. A request that was refused,
dropped or late counts for nothing.

An order that knows no tenants may serve more of them: what it costs to share is in the figures of
`fcfs`, `edf` and `hybrid`, whose steps are filled as the default's are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from scheduler.config import PRESETS, SchedulerConfig
from scheduler.figure import at_least
from scheduler.request import Slo
from scheduler.simulator.capacity import at_load, measure_capacity
from scheduler.simulator.records import Record, Run
from scheduler.simulator.replay import config_of
from scheduler.simulator.report import number, percent
from scheduler.simulator.run import simulate
from scheduler.simulator.setup import Machine, load_machine
from scheduler.simulator.suite import OnRun, SuiteResult
from scheduler.simulator.synthetic import shipped_trace
from scheduler.simulator.workload import Workload

_TTFT_S, _TPOT_S = 2.0, 0.1
TRACES: Mapping[str, str] = {
    "servegen_large": "servegen_m-large_excerpt.csv",
    "servegen_small": "servegen_m-small_excerpt.csv",
    "azure": "azure_conv_2023_excerpt.csv",
    "mooncake": "mooncake_conversation_excerpt.jsonl",
}
# Its prompts are of 8,000 tokens at the median and of up to 120,000.
_MAX_REQUESTS = {"mooncake": 300}
LOADS = (0.8, 1.0, 1.4, 2.0)
_DEFAULT = "default"
_CONFIGS: Mapping[str, SchedulerConfig] = {
    _DEFAULT: PRESETS["mixed"],
    "fcfs": config_of("mixed", "fcfs"),
    "edf": config_of("mixed", "edf"),
    "hybrid": config_of("mixed", "hybrid"),
    "low_latency": PRESETS["low-latency"],
}
NUM_RUNS = len(TRACES) * len(LOADS) * len(_CONFIGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputSuiteOptions:
    """Size the suite: the first `requests` of each trace."""

    requests: int = 1_200
    traces: Sequence[str] = tuple(TRACES)
    loads: Sequence[float] = LOADS


_DEFAULTS = GoodputSuiteOptions()


def run(on_run: OnRun, options: GoodputSuiteOptions = _DEFAULTS) -> SuiteResult:
    """Replay each trace at each load under each configuration."""
    result = SuiteResult(
        header=("", "load", "order", "goodput", "mean pace kept", "refused", "late", "tokens/s")
    )
    machine = load_machine("a100-llama-3-8b")
    ratios: dict[str, list[float]] = {}
    for trace in options.traces:
        limit = min(options.requests, _MAX_REQUESTS.get(trace, options.requests))
        workload = shipped_trace(TRACES[trace], limit=limit)
        workload = replace(
            workload, arrivals=[replace(a, slo=Slo(_TTFT_S, _TPOT_S)) for a in workload.arrivals]
        )
        capacity = measure_capacity(machine, PRESETS["mixed"], workload)
        for load in options.loads:
            goodputs = _goodputs(machine, trace, at_load(workload, load, capacity), load, result)
            for name, goodput in goodputs:
                on_run(f"{trace} {load:g} {name}")
                if name == _DEFAULT:
                    own = goodput
                    continue
                for metric in goodput:
                    ratio = own[metric] / max(goodput[metric], 1e-9)
                    ratios.setdefault(f"{metric}_{name}", []).append(ratio)
                    _state(result, f"{trace}_{load:g}x_{metric}_over_{name}_ratio", ratio)
    for name, found in ratios.items():
        mean = sum(found) / len(found)
        result.figures[f"{name}_ratio"] = at_least(mean, 1.0, "ratio")
    return result


def _goodputs(
    machine: Machine, trace: str, workload: Workload, load: float, result: SuiteResult
) -> Sequence[tuple[str, Mapping[str, float]]]:
    """Measure one trace at one load under each configuration, the default first."""
    goodputs = []
    for name, config in _CONFIGS.items():
        done = simulate(machine, config, workload)
        goodputs.append((name, _show(trace, load, name, done, result)))
    return goodputs


def _show(
    trace: str, load: float, name: str, done: Run, result: SuiteResult
) -> Mapping[str, float]:
    """Add a row and a sample; returns both goodputs, in requests/s."""
    duration_s = done.workload.duration_s
    taken = [record for record in done.records if record.reject is None]
    kept = sum(record.meets_slo for record in done.records) / duration_s
    kept_mean = sum(map(_keeps_mean_pace, done.records)) / duration_s
    num_late = sum(not _begins_in_time(record) for record in taken)
    num_refused = len(done.records) - len(taken)
    tokens_per_s = sum(r.arrival.num_tokens for r in taken if r.is_complete) / done.end_s
    result.samples[f"{trace}/{load:g}/{name}"] = {
        "goodput_rps": kept,
        "goodput_mean_pace_rps": kept_mean,
        "refused": num_refused,
        "late_share_of_taken": num_late / max(1, len(taken)),
        "tokens_per_s": tokens_per_s,
    }
    result.rows.append(
        (
            trace,
            number(load),
            name,
            number(kept),
            number(kept_mean),
            number(num_refused),
            percent(num_late / max(1, len(taken))),
            number(tokens_per_s),
        )
    )
    return {"goodput": kept, "goodput_mean_pace": kept_mean}


def _keeps_mean_pace(record: Record) -> bool:
    in_time = record.is_complete and _begins_in_time(record)
    return in_time and (record.tpot_s or 0.0) <= _TPOT_S


def _begins_in_time(record: Record) -> bool:
    return record.has_begun and record.ttft_s <= _TTFT_S


def _state(result: SuiteResult, name: str, ratio: float) -> None:
    result.figures[name] = at_least(ratio, 1.0, "ratio")
