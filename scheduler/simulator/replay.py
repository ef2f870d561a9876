"""One replay of a trace, from options to figures: what `sluice simulate --trace` does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scheduler.config import PRESETS, SchedulerConfig
from scheduler.policies.registry import levels_of
from scheduler.request import Slo
from scheduler.simulator.capacity import at_load, measure_capacity
from scheduler.simulator.errors import SimulationError
from scheduler.simulator.machine_file import open_machine
from scheduler.simulator.metrics import measure
from scheduler.simulator.records import Run
from scheduler.simulator.run import OnEnd, simulate
from scheduler.simulator.setup import Machine
from scheduler.simulator.tiers import Tier, apply_tiers
from scheduler.simulator.traces import read_trace
from scheduler.simulator.workload import Arrival, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """Choose what to replay, and under what.

    `machine` is a name or a file, see `scheduler.simulator.machine_file`. `load` is offered tokens
    over capacity, see `scheduler.simulator.capacity`; None keeps the trace's own times. `slo` is
    promised to everyone whom neither the trace promises anything nor a tier of `tiers` names. With
    `max_tokens` requests that do not say it themselves ask for that many tokens and end where the
    trace says, so that their lengths have to be predicted.
    """

    trace: Path
    policy: str = "vtc"
    preset: str = "mixed"
    machine: str = "a100-llama-3-8b"
    load: float | None = None
    seed: int = 0
    limit: int | None = None
    tiers: Sequence[Tier] = ()
    slo: Slo = field(default_factory=Slo)
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Replay:
    """Hold all that is ready to run."""

    options: ReplayOptions
    machine: Machine
    config: SchedulerConfig
    workload: Workload
    capacity_tokens_per_s: float | None

    def run(self, on_end: OnEnd | None = None) -> tuple[Run, dict[str, Any]]:
        """Run it; returns the run and its figures, with what was run among them."""
        run = simulate(self.machine, self.config, self.workload, on_end=on_end)
        options = self.options
        figures = {
            "trace": self.workload.name,
            "policy": options.policy,
            "preset": options.preset,
            "machine": self.machine.cost.name,
            "load": self.load,
            "seed": options.seed,
            "capacity_tokens_per_s": self.capacity_tokens_per_s,
            "offered_tokens_per_s": self.workload.offered_tokens_per_s,
            **measure(run),
        }
        return run, figures

    @property
    def load(self) -> float | None:
        """Tell the load; lengths without times have load 1 where none was chosen."""
        chosen = self.options.load
        return 1.0 if chosen is None and not self.workload.has_times else chosen


def prepare(options: ReplayOptions) -> Replay:
    """Read the trace and set its load, which takes a saturated run of a sample of it.

    Raises: `SimulationError`; `UnknownPolicy`.
    """
    machine = open_machine(options.machine)
    config = config_of(options.preset, options.policy)
    workload = read_trace(options.trace, seed=options.seed, limit=options.limit)
    arrivals = [_asked(arrival, options) for arrival in workload.arrivals]
    workload = apply_tiers(replace(workload, arrivals=arrivals), options.tiers)
    replay = Replay(options, machine, config, workload, None)
    if replay.load is None:
        return replay
    capacity = measure_capacity(machine, config, workload)
    return replace(
        replay,
        workload=at_load(workload, replay.load, capacity),
        capacity_tokens_per_s=capacity,
    )


def _asked(arrival: Arrival, options: ReplayOptions) -> Arrival:
    """Ask as the options say where the trace leaves it open."""
    return replace(
        arrival,
        slo=options.slo if arrival.slo == Slo() else arrival.slo,
        max_tokens=options.max_tokens if arrival.max_tokens is None else arrival.max_tokens,
    )


def config_of(preset: str, policy: str) -> SchedulerConfig:
    """Take a preset with another policy. Raises: `SimulationError`; `UnknownPolicy`."""
    if preset not in PRESETS:
        raise SimulationError(f"no preset {preset!r}: choose one of {', '.join(PRESETS)}")
    levels_of(policy)
    config = PRESETS[preset]
    return replace(config, fairness=replace(config.fairness, policy=policy))
