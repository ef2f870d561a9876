"""What the rounds of the gateway's bench come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

from gateway.bench.options import GatewayBenchOptions
from gateway.bench.subjects import Subject
from scheduler.bench.part import Part, Row
from scheduler.bench.report import Figure, at_least, at_most

_GUARDS_GOAL = 1.15
_CPU_GOAL_MS = 1.0
_LITELLM_GOAL = 8.0
_ADDED_GOAL_MS = 10.0
_SCRIPT_GOAL_US = 60.0
# What traces add to a request, at the default share and at the whole.
_TRACED_GOAL, _ALL_TRACED_GOAL = 1.08, 1.35


@dataclass(frozen=True, slots=True)
class Costs:
    """State the CPU time of one server in one round, in microseconds."""

    request_us: float
    event_us: float


@dataclass(frozen=True, slots=True)
class Round:
    """Hold what one round measured: costs by server, the script's time, latencies at a rate."""

    costs: dict[str, Costs]
    script_us: float
    echo_p99_s: float
    gateway_p99_s: float


def make_part(
    options: GatewayBenchOptions, subjects: Sequence[Subject], rounds: Sequence[Round]
) -> Part:
    """Take medians over rounds, and ratios within them."""
    part = Part()
    for subject in subjects:
        _add_costs(part, subject.name, [measured.costs[subject.name] for measured in rounds])
    figures = part.figures
    guards = _ratio(rounds, "guarded echo", "echo")
    figures["guards_over_echo"] = at_most(guards, _GUARDS_GOAL, "ratio")
    figures["gateway_over_echo"] = Figure(_ratio(rounds, "gateway", "echo"), "ratio")
    cpu_ms = median(measured.costs["gateway"].request_us for measured in rounds) / 1000
    figures["cpu_ms_per_request"] = at_most(cpu_ms, _CPU_GOAL_MS, "ms")
    traced = _ratio(rounds, "traced gateway", "gateway")
    figures["traced_cpu_ratio"] = at_most(traced, _TRACED_GOAL, "ratio")
    all_traced = _ratio(rounds, "all traced", "gateway")
    figures["all_traced_cpu_ratio"] = at_most(all_traced, _ALL_TRACED_GOAL, "ratio")
    if "litellm" in rounds[0].costs:
        ratio = _ratio(rounds, "litellm", "gateway")
        figures["litellm_cpu_ratio"] = at_least(ratio, _LITELLM_GOAL, "ratio")
    added_ms = median(1000 * (one.gateway_p99_s - one.echo_p99_s) for one in rounds)
    figures["added_p99_ms"] = at_most(added_ms, _ADDED_GOAL_MS, "ms")
    script_us = median(measured.script_us for measured in rounds)
    figures["quota_script_us"] = at_most(script_us, _SCRIPT_GOAL_US, "µs")
    part.samples["latency_p99_s"] = [
        {"echo": one.echo_p99_s, "gateway": one.gateway_p99_s} for one in rounds
    ]
    part.samples["quota_script_us"] = [one.script_us for one in rounds]
    conditions = asdict(options)
    conditions["litellm"] = options.litellm is not None
    part.samples["conditions"] = conditions
    return part


def _add_costs(part: Part, subject: str, costs: Sequence[Costs]) -> None:
    name = subject.replace(" ", "_")
    request_us = median(cost.request_us for cost in costs)
    part.figures[f"{name}_cpu_us_per_request"] = Figure(request_us, "µs")
    note = f"{request_us:.0f} µs a request"
    if subject != "litellm":
        event_us = median(cost.event_us for cost in costs)
        part.figures[f"{name}_cpu_us_per_event"] = Figure(event_us, "µs")
        note += f", {event_us:.1f} µs an event"
    part.rows.append(Row(subject, None, note=note))
    part.samples[subject] = [asdict(cost) for cost in costs]


def _ratio(rounds: Sequence[Round], over: str, under: str) -> float:
    return median(one.costs[over].request_us / one.costs[under].request_us for one in rounds)
