"""Goals that are meant for a GPU: anywhere else a figure is stated without one."""

from __future__ import annotations

from scheduler.bench.report import Figure, at_least, at_most
from scheduler.bench.setup import Bench


def at_least_on_gpu(bench: Bench, value: float, bound: float | None, unit: str) -> Figure:
    """State a figure that must reach `bound` on a GPU, where there is one."""
    if bound is None or not bench.options.on_gpu:
        return Figure(value, unit)
    return at_least(value, bound, unit)


def at_most_on_gpu(bench: Bench, value: float, bound: float | None, unit: str) -> Figure:
    """State a figure that must not exceed `bound` on a GPU, where there is one."""
    if bound is None or not bench.options.on_gpu:
        return Figure(value, unit)
    return at_most(value, bound, unit)
