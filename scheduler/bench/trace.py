"""What a step spends its time on, kernel by kernel: torch's profiler over steps as they are served.

Each kind of step (`scheduler.bench.watched_steps`) has a table. On a GPU its rows are kernels, also
those of replayed graphs; on a CPU they are torch's operators, and idle is what is outside them.

**Two passes, one session.** A profiler slows what it watches, the gaps between small kernels most,
so all of it is served twice, first without, and the plain time of the same steps stands beside each
table. And all is watched in one session: before CUDA 13.1 sessions lose kernels at their beginning,
each of a process more than the one before it. So steps are counted from the end, too, and the first
of each batch are left out. What follows in the same process may be slower for the profiler.

Source: pytorch/pytorch#192021 on what sessions lose.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from statistics import median
from typing import Any

from scheduler.bench.drive import BenchError, Step
from scheduler.bench.kernel_table import (
    FIRST_KERNEL,
    Launch,
    TraceRow,
    TraceTable,
    Window,
    split_steps,
    tabulate,
)
from scheduler.bench.kernel_work import work_by_launch
from scheduler.bench.part import Part, Row
from scheduler.bench.report import Figure
from scheduler.bench.setup import Bench
from scheduler.bench.watched_steps import MARK, WatchedStep, list_cases, serve

# Of each kind of step: the first are not yet as the others, and the last waits for what comes next.
_KEPT = slice(2, -1)
_NUM_PRINTED = 14


def trace(bench: Bench) -> Part:
    """Trace steps that decode 1, 32 and 256 rows (1 and 8 on a CPU), and some that prefill.

    Raises: `BenchError`: the profiler sees none of them.
    """
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as torch_profile

    activity = ProfilerActivity.CUDA if bench.options.on_gpu else ProfilerActivity.CPU
    plain = serve(bench, nullcontext())
    # torch types its events not at all.
    profiler: Any = torch_profile(activities=[activity])
    traced = serve(bench, profiler)
    launches = read_launches(profiler.events(), activity.name)
    # Its events are in circles, and hold much for each kernel.
    del profiler
    gc.collect()
    return tabulate_cases(bench, plain, traced, launches)


def read_launches(events: Iterable[Any], device_type: str) -> list[Launch]:
    """Take from a profiler's events what ran on a device, and was called by nothing that did.

    Any: torch's profiler has no types for its events.
    """
    return [
        Launch(event.name, event.time_range.start, event.time_range.elapsed_us())
        for event in events
        if event.device_type.name == device_type and event.cpu_parent is None
    ]


def tabulate_cases(
    bench: Bench,
    plain: Sequence[WatchedStep],
    traced: Sequence[WatchedStep],
    launches: Sequence[Launch],
) -> Part:
    """Make a table of each case, of the launches that a profiler saw of the steps `traced`.

    Raises: `BenchError`: it saw none of them.
    """
    windows = split_steps(launches, FIRST_KERNEL if bench.options.on_gpu else MARK)
    # Counted from the end; the last step has no window.
    pairs = list(zip(reversed(windows), reversed(traced[:-1]), strict=False))[::-1]
    part = Part()
    for case in list_cases(bench):
        found = [
            (window, step.plan)
            for window, step in pairs
            if step.case == case and case.has(step.plan)
        ][_KEPT]
        plain_s = [s.wall_s for s in plain if s.case == case and case.has(s.plan)][_KEPT]
        if found and plain_s:
            _report(bench, case.name, found, median(plain_s), part)
        else:
            part.samples[case.name] = {"num_steps": 0}
    if not part.figures:
        raise BenchError(f"of {len(launches)} launches that the profiler saw, none is of a step")
    return part


def _report(
    bench: Bench,
    case: str,
    steps: Sequence[tuple[Window, Step]],
    plain_s: float,
    part: Part,
) -> None:
    """Add a table's figures, its samples, and the rows that take longest."""
    step = steps[len(steps) // 2][1]
    features = step.features
    work = work_by_launch(bench.work, features, step.num_draws) if bench.options.on_gpu else {}
    table = tabulate([window for window, _ in steps], work, bench.ceilings)
    name = f"trace_{bench.subject}_{case}"
    part.figures |= {
        f"{name}_step_us": Figure(table.step_us, "us"),
        f"{name}_idle_share": Figure(table.idle_share, "share"),
        f"{name}_launches": Figure(table.launches, "launches"),
    }
    part.samples[case] = {
        "num_tokens": features.num_tokens,
        "num_context_tokens": features.decode_context_tokens + features.prefill_context_tokens,
        "plain_step_ms": plain_s * 1000,
        **table.as_json(),
    }
    note = f"{table.step_us:,.0f} µs a step, {plain_s * 1e6:,.0f} untraced"
    note += f", {table.idle_share:.0%} idle, {table.launches:.0f} launches"
    part.rows.append(Row(case, features.num_tokens / plain_s, note=note))
    part.rows += [_printed(row, table) for row in table.rows[:_NUM_PRINTED]]


def _printed(row: TraceRow, table: TraceTable) -> Row:
    note = f"{row.us:,.1f} µs, {row.us / table.step_us:.0%}, {row.launches:.3g} launches"
    note += "" if row.gb_per_s is None else f", {row.gb_per_s:,.0f} GB/s"
    note += "" if row.tflop_per_s is None else f", {row.tflop_per_s:,.1f} TFLOP/s"
    return Row(f"  {row.what}", None, share_of_ceiling=row.of_ceiling, note=note)
