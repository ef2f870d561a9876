"""What an endless batch backlog gets out of an engine that serves others first.

ServeGen's m-large clients come at 0.6 of the capacity, promised a first token and a pace; behind
them wait, without end, requests of the band `batch` with m-small's lengths. Beside it the same
online load alone, and the batch alone. The same without the last on two traces that nothing here
was tuned on, and then what becomes of batch work with a window in a flood
(`scheduler.simulator.window_part`). On Llama-3-8B and one A100.

A run is cut when the last online request has come. Those are judged that were promised to be done
by then, whether they were or not, and are the same ones with the batch and without.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import cycle

from scheduler.config import AdmissionConfig, FairnessConfig, SchedulerConfig
from scheduler.figure import Figure, at_least, at_most
from scheduler.request import Band, Slo
from scheduler.simulator.capacity import at_load, measure_capacity
from scheduler.simulator.metrics import attainment, latencies, num_served_tokens
from scheduler.simulator.records import Record, Run
from scheduler.simulator.report import number, percent, seconds
from scheduler.simulator.run import simulate
from scheduler.simulator.setup import load_machine
from scheduler.simulator.suite import OnRun, SuiteResult
from scheduler.simulator.synthetic import shipped_trace
from scheduler.simulator.window_part import NUM_RUNS as NUM_WINDOW_RUNS
from scheduler.simulator.window_part import WindowOptions, run_windows
from scheduler.simulator.workload import Arrival, Workload

_TTFT_S, _TPOT_S = 5.0, 0.1
ONLINE = Slo(_TTFT_S, _TPOT_S)
_MACHINE = "a100-llama-3-8b"
_ONLINE_KEPT = 0.99
_MAX_LOST = 0.005
_HARVESTED_SHARE = 0.7
OTHER_TRACES: Mapping[str, str] = {
    "azure": "azure_conv_2023_excerpt.csv",
    "servegen_small": "servegen_m-small_excerpt.csv",
}
NUM_RUNS = 3 + 2 * len(OTHER_TRACES) + NUM_WINDOW_RUNS


@dataclass(frozen=True, slots=True, kw_only=True)
class HarvestSuiteOptions:
    """Size the suite: the first `requests` of the trace, and of others; how many wait behind."""

    requests: int = 9_965
    other_requests: int = 3_000
    windows: WindowOptions = field(default_factory=WindowOptions)
    load: float = 0.6
    backlog_depth: int = 512


_DEFAULTS = HarvestSuiteOptions()


def run(on_run: OnRun, options: HarvestSuiteOptions = _DEFAULTS) -> SuiteResult:
    """Run online work alone, the batch alone, and both."""
    result = SuiteResult(
        header=("", "online kept", "TTFT p99", "TPOT p99", "online tokens/s", "batch tokens/s")
    )
    machine = load_machine(_MACHINE)
    online, capacity = _online("servegen_m-large_excerpt.csv", options.requests, options)
    both = replace(online, backlog=_backlog(), backlog_depth=options.backlog_depth)
    batch = replace(both, arrivals=[], backlog=_backlog())
    runs: dict[str, Run] = {}
    for name, workload in (("online alone", online), ("batch alone", batch), ("both", both)):
        runs[name] = simulate(machine, _config(), workload, until_s=online.duration_s)
        _show(name, runs[name], result)
        on_run(name)
    kept = {name: attainment(_settled(done)) or 0.0 for name, done in runs.items()}
    batch_capacity = _tokens_per_s(runs["batch alone"], batch=True)
    spare = batch_capacity - _tokens_per_s(runs["both"], batch=False)
    harvested = _tokens_per_s(runs["both"], batch=True)
    result.figures |= {
        "capacity_tokens_per_s": Figure(capacity, "tokens/s"),
        "batch_alone_tokens_per_s": Figure(batch_capacity, "tokens/s"),
        "online_kept_share": at_least(kept["both"], _ONLINE_KEPT, "share"),
        "online_kept_alone_share": Figure(kept["online alone"], "share"),
        "online_kept_lost": at_most(kept["online alone"] - kept["both"], _MAX_LOST, "share"),
        "harvested_tokens_per_s": Figure(harvested, "tokens/s"),
        "harvested_share_of_spare": at_least(harvested / spare, _HARVESTED_SHARE, "share"),
    }
    for trace, name in OTHER_TRACES.items():
        online, _ = _online(name, options.other_requests, options)
        both = replace(online, backlog=_backlog(), backlog_depth=options.backlog_depth)
        kept = {}
        for what, workload in (("alone", online), ("both", both)):
            done = simulate(machine, _config(), workload, until_s=online.duration_s)
            kept[what] = attainment(_settled(done)) or 0.0
            _show(f"{trace}, {what}", done, result)
            on_run(f"{trace}, {what}")
        lost = kept["alone"] - kept["both"]
        result.figures[f"{trace}_online_kept_lost"] = at_most(lost, _MAX_LOST, "share")
        harvested = _tokens_per_s(done, batch=True)
        result.figures[f"{trace}_harvested_tokens_per_s"] = Figure(harvested, "tokens/s")
    run_windows(on_run, result, options.windows)
    return result


def _online(name: str, limit: int, options: HarvestSuiteOptions) -> tuple[Workload, float]:
    """Read a trace at the suite's load, with its promises; returns what the machine can do, too."""
    online = shipped_trace(name, limit=limit)
    online = replace(online, arrivals=[replace(a, slo=ONLINE) for a in online.arrivals])
    capacity = measure_capacity(load_machine(_MACHINE), _config(), online)
    return at_load(online, options.load, capacity), capacity


def _config() -> SchedulerConfig:
    return SchedulerConfig(
        fairness=FairnessConfig(policy="vtc"),
        admission=AdmissionConfig(predict_ttft=False, drop_expired=False),
    )


def _backlog() -> Iterator[Arrival]:
    for arrival in cycle(shipped_trace("servegen_m-small_excerpt.csv").arrivals):
        yield replace(arrival, tenant_id="backlog", band=Band.BATCH)


def _settled(done: Run) -> list[Record]:
    """List the online requests that were promised to have been served to their ends by now."""
    return [record for record in done.online if _due_s(record.arrival) <= done.end_s]


def _due_s(arrival: Arrival) -> float:
    return arrival.at_s + _TTFT_S + _TPOT_S * arrival.num_output_tokens


def _tokens_per_s(done: Run, *, batch: bool) -> float:
    records = [record for record in done.records if record.is_backlog is batch]
    return sum(num_served_tokens(record) for record in records) / done.end_s


def _show(name: str, done: Run, result: SuiteResult) -> None:
    begun = [record for record in done.online if record.has_begun]
    figures = latencies(begun)
    kept = attainment(_settled(done))
    online, batch = (_tokens_per_s(done, batch=flag) for flag in (False, True))
    result.samples[name] = {
        **figures,
        "online_kept_share": kept,
        "online_tokens_per_s": online,
        "batch_tokens_per_s": batch,
        "preemptions": sum(record.num_preemptions for record in done.records),
        "recomputed_tokens": done.num_recomputed_tokens,
        "virtual_seconds": done.end_s,
    }
    result.rows.append(
        (
            name,
            percent(kept),
            seconds(figures["ttft_s"]["p99"]),
            seconds(figures["tpot_s"]["p99"]),
            number(online),
            number(batch),
        )
    )
