"""The parts of `soak-walls`: what one tenant can send, beside another's small requests."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from scheduler.bench.report import Figure, at_least, at_most
from tests.live_server import Server
from tests.soak import walls
from tests.soak.live_gateway import percentile
from tests.soak.wall_bodies import SHAPES

Part = tuple[dict[str, Figure], dict[str, Any]]
FOR_S: Final = 10.0
SHAPE_S: Final = 3.0
APART_S: Final = 1.0
# What a victim may notice, and what the event loop should be held at most.
BOUND_MS: Final = 250.0
WISH_S: Final = 0.05


def lists(directory: Path) -> Part:
    """Send a million lists in 4 MiB from two connections; and nothing, to compare with."""
    with walls.served(directory, "--engine", "simulated") as server:
        idle = walls.idle(server, for_s=FOR_S)
        figures, samples = _attacked(server, "lists", connections=2, apart_s=APART_S)
    alone = {
        "idle_victim_p99_ms": Figure(idle.p99_s * 1000, "ms"),
        "idle_held_max_ms": Figure(idle.held_s * 1000, "ms"),
    }
    return alone | figures, {"idle": _sampled(idle), **samples}


def logprobs(directory: Path) -> Part:
    """Ask five times at once for an answer of 11 MB, again and again."""
    with walls.quick_model(directory) as server:
        return _attacked(server, "logprobs", connections=5)


def echoes(directory: Path) -> Part:
    """Ask for the log-probabilities of 64 prompts in one answer, again and again."""
    with walls.quick_model(directory) as server:
        return _attacked(server, "echoes", connections=1)


def strings(directory: Path) -> Part:
    """Send what else is long in 4 MiB, one shape after the other, from two connections."""
    seen = {}
    with walls.served(directory, "--engine", "simulated") as server:
        for shape in SHAPES:
            walls.until_calm(server)
            attack = walls.Attack(body=shape, connections=2, for_s=SHAPE_S, apart_s=APART_S)
            seen[shape] = walls.press(server, attack)
    figures = {
        "strings_victim_refused": at_most(sum(b.num_refused for b in seen.values()), 0, "requests"),
        "strings_victim_failed": at_most(sum(b.num_failed for b in seen.values()), 0, "requests"),
        "strings_livez_dead": at_most(sum(b.num_dead for b in seen.values()), 0, "answers"),
        "strings_victim_p99_ms": at_most(
            max(b.p99_s for b in seen.values()) * 1000, BOUND_MS, "ms"
        ),
    }
    for shape, beside in seen.items():
        figures[f"strings_{shape}_held_max_ms"] = at_most(beside.held_s * 1000, BOUND_MS, "ms")
    return figures, {shape: _sampled(beside) for shape, beside in seen.items()}


def _attacked(server: Server, attack: str, *, connections: int, apart_s: float = 0.0) -> Part:
    asked = walls.Attack(
        body=attack, connections=connections, for_s=FOR_S, apart_s=apart_s, at_least=2
    )
    beside = walls.press(server, asked)
    num_charged = walls.num_charged(server, attack)
    over_wish = sum(seconds > WISH_S for seconds in beside.waited_s)
    figures = {
        f"{attack}_victim_requests": Figure(len(beside.latency_s), "requests"),
        f"{attack}_victim_refused": at_most(beside.num_refused, 0, "requests"),
        f"{attack}_victim_failed": at_most(beside.num_failed, 0, "requests"),
        f"{attack}_victim_p99_ms": at_most(beside.p99_s * 1000, BOUND_MS, "ms"),
        f"{attack}_held_max_ms": at_most(beside.held_s * 1000, BOUND_MS, "ms"),
        f"{attack}_held_cpu_max_ms": Figure(max(beside.computed_s) * 1000, "ms"),
        f"{attack}_livez_dead": at_most(beside.num_dead, 0, "answers"),
        f"{attack}_held_over_50_ms": Figure(over_wish, "times"),
        f"{attack}_attacker_answers": Figure(sum(beside.attacker_statuses.values()), "answers"),
        f"{attack}_charged_requests": at_least(num_charged, 1, "requests"),
    }
    return figures, {attack: _sampled(beside)}


def _sampled(beside: walls.Beside) -> dict[str, Any]:
    return {
        "victim_statuses": beside.victim_statuses,
        "victim_latency_s": _summary(beside.latency_s),
        "livez_waited_s": _summary(beside.waited_s),
        "livez_computed_max_s": max(beside.computed_s),
        "livez_dead": beside.num_dead,
        "livez_longest_s": sorted(beside.waited_s)[-20:],
        "attacker_statuses": beside.attacker_statuses,
        "largest_answer_bytes": beside.largest_answer_bytes,
        "load_average": os.getloadavg(),
    }


def _summary(values: list[float]) -> dict[str, float]:
    quantiles = (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
    return {"count": len(values)} | {name: percentile(values, q) for name, q in quantiles}
