"""Turns what a profiler saw a device run into a table: what a step spends on what.

A step begins where its first kernel does, and ends where the next step begins, so that time in
which the device waits for a launch is in it.

**Whose product is it?** A library names its kernels by their tiles, and the layers' products share
names, so a product is known by its neighbours: within a step the order of launches is fixed, and
between two of our own kernels there is one product (several launches, where it splits its sums).
Neighbours that are not known here say nothing, and such a product keeps its kernel's name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from scheduler.bench.roofline import Ceilings, Phase

FIRST_KERNEL = "_begin_step_kernel"
_NORM_KERNEL = "_add_rms_norm_kernel"
# The product before a kernel, and the one after it.
_BEFORE = {"_rotary_write_kernel": "qkv", "_silu_mul_kernel": "gate_up"}
_AFTER = {
    "_decode_attention": "out",
    "_combine_attention": "out",
    "_prefill_attention": "out",
    "_silu_mul_kernel": "down",
    _NORM_KERNEL: "head",
}
# It prepares a product's input, and so stands between a product and its neighbour.
_QUANTIZE_KERNEL = "_quantize_rows_kernel"
# Kernels that tell whose product is beside them; a test holds them to the engine's.
KNOWN_KERNELS = frozenset({FIRST_KERNEL, _QUANTIZE_KERNEL, *_BEFORE, *_AFTER})

_OWN = re.compile(r"_\w+")
# Neither a kernel of ours nor a product: copies, fills, and torch's small operators.
_NO_PRODUCT = re.compile(r"Mem(cpy|set)|.*\bat::native::")
_LONGEST_NAME = 80


@dataclass(frozen=True, slots=True)
class Launch:
    """Describe one kernel, copy or operator that ran; times as the profiler's clock has them."""

    name: str
    start_us: float
    duration_us: float

    @property
    def end_us(self) -> float:
        return self.start_us + self.duration_us


@dataclass(frozen=True, slots=True)
class Window:
    """Hold what ran in a step, in the order in which it began, and when the next step began."""

    launches: Sequence[Launch]
    end_us: float

    @property
    def step_us(self) -> float:
        return self.end_us - self.launches[0].start_us

    def idle_after_us(self) -> list[float]:
        """Say for each launch how long nothing ran until the next one, or until the end.

        Launches may overlap, where one may begin before the other has ended.
        """
        idle, reached_us = [], 0.0
        starts_us = [launch.start_us for launch in self.launches[1:]]
        for launch, next_us in zip(self.launches, [*starts_us, self.end_us], strict=True):
            reached_us = max(reached_us, launch.end_us)
            idle.append(max(0.0, next_us - reached_us))
        return idle


@dataclass(slots=True)
class TraceRow:
    """Say what one kind of launch takes of a step; `what` is a product's layer or a kernel's name.

    `kernels` counts launches a step by kernel. Rates are of what it must move and compute at
    least, and None where that is not known; `of_ceiling` is the least time for it over its time.
    """

    what: str
    kernels: dict[str, float] = field(default_factory=dict)
    us: float = 0.0
    idle_after_us: float = 0.0
    gb_per_s: float | None = None
    tflop_per_s: float | None = None
    of_ceiling: float | None = None

    @property
    def launches(self) -> float:
        return sum(self.kernels.values())


@dataclass(frozen=True, slots=True)
class TraceTable:
    """Hold the rows, the longest first; times and launches are a step's.

    `step_us` and `idle_us` are medians over the windows, as something outside may disturb one.
    """

    num_steps: int
    step_us: float
    idle_us: float
    rows: Sequence[TraceRow]

    @property
    def launches(self) -> float:
        return sum(row.launches for row in self.rows)

    @property
    def idle_share(self) -> float:
        return self.idle_us / self.step_us

    def as_json(self) -> dict[str, Any]:
        """Give the table as plain values, with as many digits as it is exact to."""
        rows = [
            {
                "what": row.what,
                "launches": _rounded(row.launches),
                "us": _rounded(row.us),
                "us_each": _rounded(row.us / row.launches),
                "step_share": _rounded(row.us / self.step_us),
                "idle_after_us": _rounded(row.idle_after_us),
                "gb_per_s": _rounded(row.gb_per_s),
                "tflop_per_s": _rounded(row.tflop_per_s),
                "of_ceiling": _rounded(row.of_ceiling),
                "kernels": {name: _rounded(count) for name, count in row.kernels.items()},
            }
            for row in self.rows
        ]
        return {
            "num_steps": self.num_steps,
            "step_us": _rounded(self.step_us),
            "idle_us": _rounded(self.idle_us),
            "launches": _rounded(self.launches),
            "rows": rows,
        }


def split_steps(launches: Sequence[Launch], first: str = FIRST_KERNEL) -> list[Window]:
    """Split launches into steps, by what each begins with; the last, which has no end, is left."""
    launches = sorted(launches, key=lambda launch: launch.start_us)
    begins = [i for i, launch in enumerate(launches) if launch.name == first]
    return [Window(launches[begin:end], launches[end].start_us) for begin, end in pairwise(begins)]


def tabulate(
    windows: Sequence[Window], work: Mapping[str, Phase], ceilings: Ceilings
) -> TraceTable:
    """Add up windows of equal steps.

    Args: `work`: what a step must move and compute, by what the rows are called.
    """
    assert windows, "a table is of something"
    num_steps = len(windows)
    rows: dict[str, TraceRow] = {}
    idle_us = []
    for window in windows:
        idle = window.idle_after_us()
        idle_us.append(sum(idle))
        names = [launch.name for launch in window.launches]
        for launch, product, after_us in zip(window.launches, products(names), idle, strict=True):
            name = launch.name[:_LONGEST_NAME]
            row = rows.setdefault(product or name, TraceRow(product or name))
            row.kernels[name] = row.kernels.get(name, 0) + 1 / num_steps
            row.us += launch.duration_us / num_steps
            row.idle_after_us += after_us / num_steps
    for row in rows.values():
        _rate(row, work.get(row.what), ceilings)
    return TraceTable(
        num_steps,
        median(window.step_us for window in windows),
        median(idle_us),
        sorted(rows.values(), key=lambda row: -row.us),
    )


def products(names: Sequence[str]) -> list[str | None]:
    """Say for each launch which layer's product it is part of: qkv, out, gate_up, down or head.

    None: it is none, or its neighbours do not tell.
    """
    before = _nearest(names)
    after = reversed(_nearest(names[::-1]))
    return [
        _product(previous, following) if _may_be_product(name) else None
        for name, previous, following in zip(names, before, after, strict=True)
    ]


def _nearest(names: Sequence[str]) -> list[str | None]:
    """Name for each launch the nearest kernel of ours before it."""
    nearest: list[str | None] = []
    last = None
    for name in names:
        nearest.append(last)
        if _OWN.fullmatch(name) and name != _QUANTIZE_KERNEL:
            last = name
    return nearest


def _may_be_product(name: str) -> bool:
    return not (_OWN.fullmatch(name) or _NO_PRODUCT.match(name))


def _product(previous: str | None, following: str | None) -> str | None:
    if following in _BEFORE:
        return _BEFORE[following]
    product = _AFTER.get(previous or "")
    # Behind the last norm comes no other; if one does, a product's neighbour is not known here.
    return None if product == "head" and following == _NORM_KERNEL else product


def _rate(row: TraceRow, work: Phase | None, ceilings: Ceilings) -> None:
    if work is None or not row.us:
        return
    if work.size_bytes:
        row.gb_per_s = work.size_bytes / row.us / 1e3
    if work.flop:
        row.tflop_per_s = work.flop / row.us / 1e6
    row.of_ceiling = work.floor_s(ceilings) / row.us * 1e6


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
