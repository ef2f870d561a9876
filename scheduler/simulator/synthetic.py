"""Workloads made for the suites: Poisson arrivals with the lengths of a shipped trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from scheduler.simulator.traces import read_trace
from scheduler.simulator.workload import Arrival, Workload

_TRACES = Path(__file__).parents[2] / "examples" / "traces"
# Makes an arrival of its number, time, prompt and output tokens.
MakeArrival = Callable[[int, float, int, int], Arrival]


def shipped_trace(name: str, *, limit: int | None = None) -> Workload:
    """Read one of `examples/traces`. Raises: `SimulationError`: they are not there."""
    return read_trace(_TRACES / name, limit=limit)


def azure_lengths() -> list[tuple[int, int]]:
    """List prompts and outputs of Azure's conversations, in tokens."""
    arrivals = shipped_trace("azure_conv_2023_excerpt.csv").arrivals
    return [(a.num_prompt_tokens, a.num_output_tokens) for a in arrivals]


def poisson(
    name: str,
    *,
    rate: float,
    duration_s: float,
    lengths: Sequence[tuple[int, int]],
    seed: int,
    make: MakeArrival,
) -> Workload:
    """Let requests come at `rate` a second, each of a length drawn from `lengths`."""
    draw = np.random.default_rng(seed)
    count = round(rate * duration_s)
    times_s = np.cumsum(draw.exponential(1 / rate, count))
    chosen = draw.integers(len(lengths), size=count)
    arrivals = [
        make(number, float(at_s), *lengths[index])
        for number, (at_s, index) in enumerate(zip(times_s, chosen, strict=True))
    ]
    return Workload(name=name, arrivals=arrivals, duration_s=max(float(times_s[-1]), 1e-9))
