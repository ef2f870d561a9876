"""The parts of `soak-walls`: what one tenant can do, beside another's small requests.

Each attack has a server of its own. Spells with it and without take turns, so that a machine that
gets slower does so for both; the last part is all attacks at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from scheduler.bench.report import Figure, at_least, at_most
from tests.soak import walls
from tests.soak.live_gateway import percentile

Part = tuple[dict[str, Figure], dict[str, Any]]
ROUNDS: Final = 3
SPELL_S: Final = 6.0
ALL: Final = "all"
# Beside an attack a victim's 99th percentile may be so much of what it is alone, and so much more.
BOUND_RATIO: Final = 1.5
BOUND_MS: Final = 20.0

# The most that one client can do with each from a few connections.
ATTACKS: Final = {
    attack.kind: attack
    for attack in (
        walls.Attack(kind="lists", for_s=SPELL_S, connections=2, apart_s=1.0),
        walls.Attack(kind="numbers", for_s=SPELL_S, connections=2, apart_s=1.0),
        walls.Attack(kind="strings", for_s=SPELL_S, connections=2, apart_s=1.0),
        walls.Attack(kind="logprobs", for_s=SPELL_S, connections=5),
        walls.Attack(kind="echoes", for_s=SPELL_S),
        walls.Attack(kind="masks", for_s=SPELL_S, connections=4),
        walls.Attack(kind="anonymous", for_s=SPELL_S),
        walls.Attack(kind="reports", for_s=SPELL_S),
        walls.Attack(kind="logins", for_s=SPELL_S),
        walls.Attack(kind="cancelled", for_s=SPELL_S),
        walls.Attack(kind="half_heads", for_s=SPELL_S),
        walls.Attack(kind="half_bodies", for_s=SPELL_S),
    )
}
# What waits for a minute or more: of the demo model, which is slow enough for that.
BACKLOG: Final = walls.Attack(kind="backlog", for_s=SPELL_S, connections=24)
# Those of which one body takes the only request of a minute.
CHARGED: Final = ("lists", "logprobs", "echoes")


def part(name: str) -> Callable[[Path], Part]:
    """Make the part of one attack, or of all at once."""

    def run(directory: Path) -> Part:
        attacks = {ALL: ATTACKS.values(), BACKLOG.kind: (BACKLOG,)}.get(name) or (ATTACKS[name],)
        serve = walls.served if name == BACKLOG.kind else walls.quick_model
        with serve(directory) as server:
            alone, beside = walls.idle(server, for_s=SPELL_S), walls.press(server, *attacks)
            for _ in range(ROUNDS - 1):
                walls.until_calm(server)
                alone += walls.idle(server, for_s=SPELL_S)
                beside += walls.press(server, *attacks)
            num_charged = walls.num_charged(server, name) if name in CHARGED else None
        samples = {name: {"alone": _sampled(alone), "beside": _sampled(beside)}}
        return _figures(name, alone, beside, num_charged), samples

    run.__name__ = f"wall_{name}"
    return run


PARTS: Final = tuple(part(name) for name in (*ATTACKS, BACKLOG.kind, ALL))


def _figures(
    name: str, alone: walls.Beside, beside: walls.Beside, num_charged: int | None
) -> dict[str, Figure]:
    bound_s = BOUND_RATIO * alone.p99_s + BOUND_MS / 1000
    figures = {
        f"victim_failed_{name}": at_most(beside.num_failed, 0, "requests"),
        f"victim_p99_{name}_ratio": at_most(beside.p99_s / bound_s, 1.0, "ratio"),
        f"victim_p99_{name}_ms": Figure(beside.p99_s * 1000, "ms"),
        f"victim_p99_beside_no_{name}_ms": Figure(alone.p99_s * 1000, "ms"),
        f"loop_lag_p99_{name}_ms": at_most(beside.lag_p99_s * 1000, BOUND_MS, "ms"),
        f"loop_lag_max_{name}_ms": Figure(beside.held_s * 1000, "ms"),
        f"loop_lag_max_beside_no_{name}_ms": Figure(alone.held_s * 1000, "ms"),
        f"livez_dead_{name}": at_most(beside.num_dead, 0, "answers"),
    }
    if name == ALL:
        figures["loop_lag_p99_ms"] = figures.pop(f"loop_lag_p99_{name}_ms")
    if num_charged is not None:
        figures[f"charged_requests_{name}"] = at_least(num_charged, 1, "requests")
    return figures


def _sampled(seen: walls.Beside) -> dict[str, Any]:
    return {
        "victim_statuses": seen.victim_statuses,
        "victim_latency_s": _summary(seen.latency_s),
        "livez_waited_s": _summary(seen.waited_s),
        "livez_computed_max_s": max(seen.computed_s),
        "livez_longest_s": sorted(seen.waited_s)[-20:],
        "attacker_statuses": seen.attacker_statuses,
        "largest_answer_bytes": seen.largest_answer_bytes,
        "load_average": os.getloadavg(),
    }


def _summary(values: list[float]) -> dict[str, float]:
    quantiles = (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
    return {"count": len(values)} | {name: percentile(values, q) for name, q in quantiles}
