"""What becomes of batch work that has a window, while online work asks for more than there is.

ServeGen's m-large clients come at 1.3 times the capacity, promised nothing. Four tenants have sent
370 requests of m-small's lengths in all to the batch band before, and their window ends with the
flood. With work forced up and without, and beside a fifth tenant that has sent ten times as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scheduler.config import SchedulerConfig
from scheduler.figure import Figure, at_least, at_most
from scheduler.request import Band
from scheduler.simulator.capacity import at_load, measure_capacity
from scheduler.simulator.fairness import service_of_tenants
from scheduler.simulator.metrics import num_served_tokens
from scheduler.simulator.records import Record, Run
from scheduler.simulator.report import number, percent
from scheduler.simulator.run import simulate
from scheduler.simulator.setup import load_machine
from scheduler.simulator.suite import OnRun, SuiteResult
from scheduler.simulator.synthetic import shipped_trace
from scheduler.simulator.workload import Arrival, Workload

_NUM_TENANTS = 4
_FLOODER = "flooder"
_LEAST_DONE = 0.8
_MAX_SERVICE_SHARE = 0.06
NUM_RUNS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowOptions:
    """Size the runs: so many requests of the flood, and of the batch band."""

    requests: int = 2_500
    load: float = 1.3
    batch_requests: int = 370
    flooding_requests: int = 3_700


def run_windows(on_run: OnRun, result: SuiteResult, options: WindowOptions) -> None:
    """Add the figures of the flood, and of batch work in it, to a suite's."""
    machine, config = load_machine("a100-llama-3-8b"), SchedulerConfig()
    flood = shipped_trace("servegen_m-large_excerpt.csv", limit=options.requests)
    flood = at_load(flood, options.load, measure_capacity(machine, config, flood))
    own = _batch(options.batch_requests, flood.duration_s)
    others = _batch(options.flooding_requests, flood.duration_s)
    others = [replace(arrival, tenant_id=_FLOODER) for arrival in others]
    shares = {**config.fairness.band_shares, Band.DUE: 0.0}
    unforced = replace(config, fairness=replace(config.fairness, band_shares=shares))
    runs: dict[str, Run] = {}
    for name, by, batch in (
        ("flood alone", config, []),
        ("flood, none forced up", unforced, own),
        ("flood, forced up", config, own),
        ("flood, another floods the batch", config, [*own, *others]),
    ):
        workload: Workload = replace(flood, arrivals=[*batch, *flood.arrivals])
        runs[name] = done = simulate(machine, by, workload, until_s=flood.duration_s)
        _show(name, done, result)
        on_run(name)
    alone, unforced_run, forced, contested = runs.values()
    lost = 1.0 - _online_tokens(forced) / _online_tokens(alone)
    result.figures |= {
        "window_done_share": at_least(_done(forced), _LEAST_DONE, "share"),
        "window_done_unforced_share": Figure(_done(unforced_run), "share"),
        "window_service_share": at_most(_service_share(forced), _MAX_SERVICE_SHARE, "share"),
        "window_online_lost_share": Figure(lost, "share"),
        "window_contested_service_share": at_most(
            _service_share(contested), _MAX_SERVICE_SHARE, "share"
        ),
        "window_contested_done_share": Figure(_done(contested), "share"),
    }


def _batch(num_requests: int, window_s: float) -> list[Arrival]:
    arrivals = shipped_trace("servegen_m-small_excerpt.csv", limit=num_requests).arrivals
    return [
        replace(
            arrival,
            at_s=0.0,
            tenant_id=f"batch {index % _NUM_TENANTS}",
            band=Band.BATCH,
            ttlt_s=window_s,
        )
        for index, arrival in enumerate(arrivals)
    ]


def _of_batch(run: Run, *, without: str = "") -> Sequence[Record]:
    return [
        record
        for record in run.records
        if record.arrival.band is Band.BATCH and record.arrival.tenant_id != without
    ]


def _done(run: Run) -> float:
    """Say what part of the four tenants' requests was done in their window."""
    records = _of_batch(run, without=_FLOODER)
    return sum(record.meets_slo for record in records) / len(records)


def _online_tokens(run: Run) -> int:
    online = (record for record in run.records if record.arrival.band is not Band.BATCH)
    return sum(num_served_tokens(record) for record in online)


def _service_share(run: Run) -> float:
    """Say what part of all service the batch band had, in time on the machine."""
    service = service_of_tenants(run)
    tenants = {record.tenant for record in _of_batch(run)}
    return float(service[list(tenants)].sum() / service.sum())


def _show(name: str, run: Run, result: SuiteResult) -> None:
    batch = _of_batch(run)
    online, of_batch = _online_tokens(run), sum(num_served_tokens(record) for record in batch)
    done = _done(run) if batch else None
    result.samples[name] = {
        "online_tokens_per_s": online / run.end_s,
        "online_completed": sum(
            record.is_complete for record in run.records if record.arrival.band is not Band.BATCH
        ),
        "batch_tokens_per_s": of_batch / run.end_s,
        "batch_requests": len(batch),
        "batch_begun": sum(record.has_begun for record in batch),
        "batch_done": sum(record.meets_slo for record in batch),
        "service_share": _service_share(run) if batch else 0.0,
        "window_s": run.workload.duration_s,
    }
    tokens = number(online / run.end_s), number(of_batch / run.end_s)
    result.rows.append((f"{name} (done)", percent(done), "", "", *tokens))
