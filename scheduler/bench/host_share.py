"""How much of a decode step the host works: scheduler and runner, in CPU time of their thread.

A turn of the loop plans a step, launches it, collects one and reports it. An engine that waits
for a device must sleep meanwhile: one that spins is charged for it, and `collect` in the samples
shows it. An engine of depth 1 computes where it launches, and there launching is left out: what
remains is the scheduler alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median

from scheduler.bench.borrowed_engine import BorrowedEngine
from scheduler.bench.drive import Driver, Job
from scheduler.bench.gpu_goals import at_most_on_gpu
from scheduler.bench.part import Part, Row
from scheduler.bench.setup import Bench

_PROMPT_TOKENS = 64
_NUM_STEPS, _NUM_WARM_STEPS = 64, 4
_GOALS = {256: 0.15}


def host_share(bench: Bench) -> Iterator[Part]:
    """Time the thread that decodes a full batch: 256 rows on a GPU, 8 elsewhere."""
    batches = bench.options.batches or ((256,) if bench.options.on_gpu else (8,))
    part = Part()
    for batch in batches:
        batch = min(batch, bench.info.max_num_seqs)
        rounds = [_measure(bench, batch) for _ in range(bench.options.rounds + 1)][1:]
        share = median(host_s / wall_s for host_s, wall_s, _ in rounds)
        wall_ms = median(wall_s for _, wall_s, _ in rounds) / _NUM_STEPS * 1000
        name = f"host_{bench.subject}_b{batch}_step_share"
        part.figures[name] = at_most_on_gpu(bench, share, _GOALS.get(batch), "share")
        part.samples[f"b{batch}"] = [calls for _, _, calls in rounds]
        part.rows.append(
            Row(
                f"batch {batch}",
                batch / wall_ms * 1000,
                note=f"the host works {share:.1%} of a step of {wall_ms:.2f} ms",
            )
        )
        yield part


def _measure(bench: Bench, batch: int) -> tuple[float, float, dict[str, float]]:
    """Return CPU and wall seconds of the steps, and the milliseconds of each call a step."""
    bench.engine.reset()
    engine = BorrowedEngine(bench.engine)
    driver = Driver(engine)
    room = bench.info.max_model_len - 2 * _NUM_STEPS
    for _ in range(batch):
        prompt = bench.prompt(max(1, min(_PROMPT_TOKENS, room)))
        driver.offer(Job(prompt=prompt, num_output_tokens=2 * _NUM_STEPS))
    # Every row has been prefilled once each has had a token; then what was in flight.
    seen: set[str] = set()
    while len(seen) < batch:
        seen |= {output.request_id for output in driver.loop.turn()}
    for _ in range(_NUM_WARM_STEPS):
        driver.loop.turn()
    engine.launch_s = engine.collect_s = 0.0
    wall_s, cpu_s = time.perf_counter(), time.thread_time()
    for _ in range(_NUM_STEPS):
        driver.loop.turn()
    wall_s, cpu_s = time.perf_counter() - wall_s, time.thread_time() - cpu_s
    scheduler_s = cpu_s - engine.launch_s - engine.collect_s
    host_s = cpu_s if bench.info.depth > 1 else scheduler_s
    calls = {
        "plan_and_report_ms": scheduler_s / _NUM_STEPS * 1000,
        "launch_ms": engine.launch_s / _NUM_STEPS * 1000,
        "collect_ms": engine.collect_s / _NUM_STEPS * 1000,
        "step_ms": wall_s / _NUM_STEPS * 1000,
    }
    return host_s, wall_s, calls
