"""What load means: offered tokens as a multiple of what the engine can do with this workload."""

from __future__ import annotations

from dataclasses import replace

from scheduler.config import SchedulerConfig, first_come
from scheduler.simulator.errors import SimulationError
from scheduler.simulator.records import Run
from scheduler.simulator.run import simulate
from scheduler.simulator.setup import Machine
from scheduler.simulator.workload import Workload

_NUM_SAMPLES = 1_000


def measure_capacity(machine: Machine, config: SchedulerConfig, workload: Workload) -> float:
    """Measure what a saturated engine does, in tokens/s, prompts and outputs together.

    Up to 1,000 requests, evenly chosen, come all at once and are served in the order of arrival,
    with full steps and none refused; what counts is the time in which some of them still wait.
    `config` says whether prefixes are cached. Raises: `SimulationError`: not one request fits.
    """
    sample = workload.all_at_once(min(_NUM_SAMPLES, len(workload.arrivals)))
    sample = replace(sample, arrivals=[replace(a, patience_s=None) for a in sample.arrivals])
    saturated = first_come(
        prefix_caching=config.prefix_caching, max_num_queued=2 * len(sample.arrivals)
    )
    run = simulate(machine, saturated, sample)
    if not any(record.has_begun for record in run.records):
        raise SimulationError(f"{workload.name}: no request fits {machine.cost.name}")
    return _tokens_per_s(run)


def at_load(workload: Workload, load: float, capacity_tokens_per_s: float) -> Workload:
    """Let requests come so fast that they ask for `load` times the capacity."""
    return workload.faster(load * capacity_tokens_per_s / workload.offered_tokens_per_s)


def _tokens_per_s(run: Run) -> float:
    """Count the tokens until the last request left the queue, or of the whole short run."""
    admitted_s = max((r.admitted_s for r in run.records if r.has_begun), default=0.0)
    end_s = admitted_s if admitted_s > run.end_s / 4 else run.end_s
    num_tokens = 0.0
    for record in run.records:
        if not record.has_begun or record.first_s > end_s:
            continue
        span_s = record.last_s - record.first_s
        share = 1.0 if record.last_s <= end_s else (end_s - record.first_s) / span_s
        num_tokens += record.arrival.num_prompt_tokens + share * record.num_output_tokens
    return num_tokens / end_s
