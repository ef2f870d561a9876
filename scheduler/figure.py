"""A measured figure and its goal: what simulations and benchmarks both state.

It stands beside them rather than in one, so that neither has to import the other for it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """State one measurement. `goal` is a bound in `unit`; `met` is None where there is none."""

    value: float
    unit: str
    goal: str | None = None
    met: bool | None = None


def at_most(value: float, bound: float, unit: str) -> Figure:
    """State a figure that must not exceed `bound`."""
    return Figure(value, unit, f"<= {bound:g}", value <= bound)


def at_least(value: float, bound: float, unit: str) -> Figure:
    """State a figure that must reach `bound`."""
    return Figure(value, unit, f">= {bound:g}", value >= bound)
