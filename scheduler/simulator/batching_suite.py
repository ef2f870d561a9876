"""What continuous batching and chunked prefill buy on a GPU, beside batches run to their end.

An excerpt of Azure's trace on Llama-3-8B and one A100, with as many rows for everyone, run twice
each way. All at once, which tells how many tokens a second it makes; then as they came, at a share
of the rate that continuous batching would just sustain, which tells how long people wait. Sorted
batches are given the true lengths, which nobody knows, so they are the best that sorting can do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.contract import EngineInfo
from scheduler.batching.baselines import BASELINES, BatchingConfig, make_baseline
from scheduler.config import SchedulerConfig, first_come
from scheduler.figure import Figure
from scheduler.simulator.metrics import latencies, quantiles
from scheduler.simulator.records import Run
from scheduler.simulator.report import number
from scheduler.simulator.run import simulate
from scheduler.simulator.setup import Serving, load_machine
from scheduler.simulator.suite import OnRun, SuiteResult
from scheduler.simulator.traces import read_trace
from scheduler.simulator.workload import Workload

AZURE_EXCERPT = Path(__file__).parents[2] / "examples" / "traces" / "azure_conv_2023_excerpt.csv"
PROFILE = "a100-llama-3-8b"
# With chunked prefill, as the server does it, and with prompts whole in steps of their own.
CONTINUOUS = ("continuous", "unchunked")
NUM_RUNS = 2 * (len(BASELINES) + len(CONTINUOUS))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingSuiteOptions:
    """Size the suite; a step takes `whole_tokens`, or `chunk_tokens` where prefill is chunked."""

    requests: int = 2000
    rows: int = 64
    whole_tokens: int = 8192
    chunk_tokens: int = 512
    load: float = 0.6
    timeout_s: float = 0.5


def run(on_run: OnRun, options: BatchingSuiteOptions = BatchingSuiteOptions()) -> SuiteResult:
    """Run every way of batching at once and at the load."""
    result = SuiteResult(
        header=(
            "batching",
            "tokens/s",
            "first token p50 s",
            "p99 s",
            "latency/token p50 ms",
            "longest gap p99 ms",
        )
    )
    workload = read_trace(AZURE_EXCERPT, limit=options.requests)
    at_once = workload.all_at_once(len(workload.arrivals))
    figures: dict[str, dict[str, Any]] = {}
    loaded: Workload | None = None
    # Continuous batching first, for it sets the pace.
    for name in (*CONTINUOUS, *BASELINES):
        saturated = _simulate(name, at_once, options)
        on_run(f"{name} at once")
        if loaded is None:
            rate = options.load * len(at_once.arrivals) / saturated.end_s
            loaded = workload.faster(rate * workload.duration_s / len(workload.arrivals))
        figures[name] = _figures(saturated, _simulate(name, loaded, options))
        on_run(f"{name} at load {options.load}")
    _add_figures(figures, result)
    return result


def _simulate(name: str, workload: Workload, options: BatchingSuiteOptions) -> Run:
    num_step_tokens = options.chunk_tokens if name == "continuous" else options.whole_tokens
    machine = replace(load_machine(PROFILE), max_num_batched_tokens=num_step_tokens)
    config = first_come(prefix_caching=False, max_num_queued=2 * options.requests)
    if name not in BASELINES:
        composer = replace(config.composer, prefill_first=name == "unchunked")
        machine = replace(machine, max_num_seqs=options.rows)
        return simulate(machine, replace(config, composer=composer), workload)

    def open_baseline(info: EngineInfo, config: SchedulerConfig) -> Serving:
        batching = BatchingConfig(
            batch_size=options.rows,
            timeout_s=options.timeout_s,
            window_size=4 * options.rows,
            max_batch_tokens=options.rows * 2048,
            max_num_queued=options.requests,
        )
        return make_baseline(name, info, batching)

    return simulate(machine, config, workload, open_with=open_baseline)


def _figures(at_once: Run, loaded: Run) -> dict[str, Any]:
    num_output_tokens = sum(record.num_output_tokens for record in at_once.records)
    per_token_s = [
        (record.last_s - record.arrival.at_s) / record.num_output_tokens
        for record in loaded.records
    ]
    return {
        "output_tokens_per_s": num_output_tokens / at_once.end_s,
        "num_steps_at_once": at_once.num_steps,
        "seconds_at_once": at_once.end_s,
        "seconds_loaded": loaded.end_s,
        **latencies(loaded.records),
        "latency_per_token_s": quantiles(per_token_s),
    }


def _add_figures(figures: Mapping[str, dict[str, Any]], result: SuiteResult) -> None:
    rates = {name: of["output_tokens_per_s"] for name, of in figures.items()}
    continuous, unchunked = (figures[name] for name in CONTINUOUS)
    for name in (*BASELINES, "unchunked"):
        result.figures[f"continuous_over_{name}"] = Figure(
            rates["continuous"] / rates[name], "ratio"
        )
        result.figures[f"continuous_over_{name}_ttft_p99_speedup"] = Figure(
            figures[name]["ttft_s"]["p99"] / continuous["ttft_s"]["p99"], "ratio"
        )
    result.figures["chunked_max_gap_speedup"] = Figure(
        unchunked["max_gap_s"]["p99"] / continuous["max_gap_s"]["p99"], "ratio"
    )
    for name, of in figures.items():
        result.figures[f"{name}_output_tokens_per_s"] = Figure(rates[name], "tokens/s")
        result.samples[name] = of
        result.rows.append(
            (
                name,
                number(rates[name]),
                number(of["ttft_s"]["p50"]),
                number(of["ttft_s"]["p99"]),
                number(of["latency_per_token_s"]["p50"] * 1000),
                number(of["max_gap_s"]["p99"] * 1000),
            )
        )
