"""What load means: offered tokens as a multiple of what the engine can do with this workload."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from scheduler.config import SchedulerConfig, first_come
from scheduler.simulator.errors import SimulationError
from scheduler.simulator.records import Run
from scheduler.simulator.run import simulate
from scheduler.simulator.setup import Machine
from scheduler.simulator.workload import Arrival, Workload

_NUM_SAMPLES = 1_000
# Most of the run is of full steps then, whether rows or memory are what is short.
_SAMPLES_PER_ROW = 4
_MEMORIES = 8


def measure_capacity(machine: Machine, config: SchedulerConfig, workload: Workload) -> float:
    """Measure what a saturated engine does, in tokens/s, prompts and outputs together.

    Up to a thousand requests, evenly chosen, come all at once and are served in the order of
    arrival, with full steps and none refused; what counts is the time in which some of them still
    wait. A short workload comes several times, since a few requests never fill the engine: until
    there are four for each row, or as many tokens as fill its memory eight times. No copy finds
    the prefixes of another in the cache.
    `config` says whether prefixes are cached. Raises: `SimulationError`: not one request fits.
    """
    arrivals = list(_sample(workload, _num_samples(machine, workload)))
    sample = replace(workload, arrivals=arrivals, duration_s=0.0)
    saturated = first_come(
        prefix_caching=config.prefix_caching, max_num_queued=2 * len(sample.arrivals)
    )
    run = simulate(machine, saturated, sample)
    if not any(record.has_begun for record in run.records):
        raise SimulationError(f"{workload.name}: no request fits {machine.cost.name}")
    return _tokens_per_s(run)


def _num_samples(machine: Machine, workload: Workload) -> int:
    num_arrivals = len(workload.arrivals)
    full_tokens = _MEMORIES * machine.num_blocks * machine.block_size
    num_filling = -(-full_tokens * num_arrivals // workload.num_tokens)
    num_wanted = max(_NUM_SAMPLES, _SAMPLES_PER_ROW * machine.max_num_seqs)
    return max(min(num_arrivals, _NUM_SAMPLES), min(num_wanted, num_filling))


def _sample(workload: Workload, num_samples: int) -> Iterator[Arrival]:
    arrivals = workload.arrivals
    for number in range(num_samples):
        if len(arrivals) >= num_samples:
            arrival, copy = arrivals[number * len(arrivals) // num_samples], 0
        else:
            arrival, copy = arrivals[number % len(arrivals)], number // len(arrivals)
        salt = arrival.salt or arrival.tenant_id.encode()
        if copy:
            salt += f"\0{copy}".encode()
        yield replace(arrival.uncut(), at_s=0.0, salt=salt)


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
