"""The errors of simulations, which are their caller's."""

from __future__ import annotations

from scheduler.errors import SchedulerError


class SimulationError(SchedulerError):
    """A trace, a file of tenants or an option makes no simulation."""
