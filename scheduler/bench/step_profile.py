"""Tells how much of a decode step on a CPU is spent outside torch's operators.

That is the interpreter, NumPy and the scheduler: what a faster kernel cannot help. A step counts
from one plan to the next, scheduler included. torch's profiler names the operators; those that no
other operator called are added up as the time inside. The profiler slows what it watches, outside
more than inside where operators are small, so a share is taken of the profiled time, and the plain
time is stated beside it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from statistics import median
from typing import Any

from scheduler.bench.drive import BenchError, Driver, Job
from scheduler.bench.part import Part, Row
from scheduler.bench.report import Figure, at_most
from scheduler.bench.setup import Bench

_PROMPT_TOKENS = 64
_NUM_STEPS = 24
_TOP_OPERATORS = 12
_GOALS = {("qwen3_0_5b", 8): 0.15}


def profile(bench: Bench) -> Iterator[Part]:
    """Profile steps that decode batches of 1, 8 and 32. Raises: `BenchError`: not on a CPU."""
    if bench.options.device != "cpu":
        raise BenchError("the profile tells operators from the rest on a CPU alone")
    part = Part()
    for batch in bench.options.batches or (1, 8, 32):
        plain_s, profiled_s, inside_s, operators = _measure(bench, batch)
        share = 1 - inside_s / profiled_s
        goal = _GOALS.get((bench.slug, batch))
        name = f"outside_torch_{bench.subject}_b{batch}_share"
        part.figures[name] = (
            Figure(share, "share") if goal is None else at_most(share, goal, "share")
        )
        part.samples[f"b{batch}"] = {
            "plain_step_ms": plain_s * 1000,
            "profiled_step_ms": profiled_s * 1000,
            "inside_operators_ms": inside_s * 1000,
            "operators_ms": operators,
        }
        note = f"{share:.1%} of a step outside torch, {plain_s * 1000:.2f} ms a step"
        part.rows.append(Row(f"batch {batch}", batch / plain_s, note=note))
        yield part


def _measure(bench: Bench, batch: int) -> tuple[float, float, float, dict[str, float]]:
    """Return seconds a step: plain, profiled, inside operators; and the largest operators' ms."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as torch_profile

    driver = bench.driver()
    job = Job(prompt=bench.prompt(_PROMPT_TOKENS), num_output_tokens=4 * _NUM_STEPS)
    request_ids = [driver.offer(job) for _ in range(batch)]
    # Prefill, and let buffers grow to their size.
    for _ in range(4):
        driver.loop.turn()
    plain_s = median(_turn_s(driver) for _ in range(_NUM_STEPS))
    with torch_profile(activities=[ProfilerActivity.CPU]) as profiler:
        started_s = time.perf_counter()
        for _ in range(_NUM_STEPS):
            driver.loop.turn()
        profiled_s = (time.perf_counter() - started_s) / _NUM_STEPS
    for request_id in request_ids:
        driver.cancel(request_id)
    total_us, by_name = _top_level(profiler.events())
    largest = sorted(by_name.items(), key=lambda item: -item[1])[:_TOP_OPERATORS]
    operators_ms = {name: us / _NUM_STEPS / 1000 for name, us in largest}
    return plain_s, profiled_s, total_us / _NUM_STEPS / 1e6, operators_ms


def _turn_s(driver: Driver) -> float:
    started_s = time.perf_counter()
    driver.loop.turn()
    return time.perf_counter() - started_s


# Any: torch's profiler has no types for its events.
def _top_level(events: Iterable[Any]) -> tuple[float, dict[str, float]]:
    """Add up the operators that no other called, in microseconds; in all, and by name."""
    by_name: dict[str, float] = {}
    for event in events:
        if event.cpu_parent is None:
            elapsed_us = event.time_range.elapsed_us()
            by_name[event.name] = by_name.get(event.name, 0.0) + elapsed_us
    return sum(by_name.values()), by_name
