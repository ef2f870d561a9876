"""The parts of `soak-quota`: limits that hold, holds that end and bills that come once."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import uvloop

from scheduler.bench.report import Figure, at_least, at_most
from tests.soak import cancellations as cancelling
from tests.soak import exactly_once as keyed
from tests.soak import quota_client_kills, quota_kills
from tests.soak.balance import REST, Balance
from tests.soak.killed_midway import KilledMidway, killed_midway
from tests.soak.live_gateway import percentile

Part = tuple[dict[str, Figure], dict[str, Any]]

# What is asked for around a cap of this many tokens is about twice as much.
_REQUESTS, _CAP_TOKENS, _KILLS = 100_000, 2_500_000, 60
_CANCELLATIONS, _BURST, _KILL_ROUNDS = 10_000, 48, 5
_KEYS = 10_000
_CLIENTS_S, _CLIENTS_CAP = 60.0, 2_000_000


def gateways_killed(directory: Path, scale: float = 1.0) -> Part:
    """Kill one of four gateways about every two seconds, around a cap on tokens."""
    kills = max(3, round(_KILLS * scale))
    requests, cap = _scaled(_REQUESTS, scale), _scaled(_CAP_TOKENS, scale)
    result = uvloop.run(
        quota_kills.killed_gateways(directory, requests=requests, kills=kills, cap=cap)
    )
    most = max(result.max_used_and_held, result.max_billed)
    figures = {
        "killed_requests": at_least(result.requests, requests, "requests"),
        "killed_kills": at_least(result.kills, kills, "kills"),
        "killed_overshoot_tokens": at_most(most - cap, 0, "tokens"),
        "killed_held_gone_s": at_most(result.held_gone_s, 35, "s"),
        "killed_used_minus_billed_tokens": at_most(abs(result.used - result.billed), 0, "tokens"),
        "killed_rest_granted": equal(result.remainder_status, 200, "status"),
        "killed_rest_left_tokens": at_most(abs(result.remainder), 0, "tokens"),
        "killed_samples": Figure(result.samples, "samples"),
    }
    samples = vars(result) | {"statuses": dict(result.statuses)}
    return figures, {"gateways_killed": samples}


def clients_killed(directory: Path, scale: float = 1.0) -> Part:
    """Kill one of four bare clients of the quotas every 150 ms, around a cap on tokens."""
    result = uvloop.run(
        quota_client_kills.killed_clients(
            directory, for_s=max(5.0, _CLIENTS_S * scale), cap=_scaled(_CLIENTS_CAP, scale)
        )
    )
    figures = {
        "clients_kills": Figure(result.kills, "kills"),
        "clients_requests": Figure(result.requests, "requests"),
        "clients_overshoot_tokens": at_most(result.max_used_and_held - result.cap, 0, "tokens"),
        "clients_held_gone_s": at_most(result.held_gone_s, 35, "s"),
        "clients_used_minus_billed_tokens": at_most(abs(result.used - result.billed), 0, "tokens"),
    }
    return figures, {"clients_killed": asdict(result)}


def cancellations(directory: Path, scale: float = 1.0) -> Part:
    """Leave requests at eight points of their life; kill a gateway with requests at each."""
    count, rounds = _scaled(_CANCELLATIONS, scale), _scaled(_KILL_ROUNDS, scale)
    left, killed = uvloop.run(_cancel_and_kill(directory, count, rounds))
    figures = {
        "cancellations": at_least(left.cancellations, count, "requests"),
        "cancelled_held_gone_s": at_most(max(left.held_gone_s), 1, "s"),
        "cancelled_phantom_429": at_most(left.statuses.get("429", 0), 0, "answers"),
        "cancelled_other_failures": at_most(_num_failed(left.statuses, "429"), 0, "answers"),
        **_balanced("cancelled", left.balance),
        "midway_kills": at_least(killed.kills, rounds * len(cancelling.POINTS), "kills"),
        "midway_held_gone_s": at_most(max(killed.held_gone_s), 35, "s"),
        "midway_reservations_left": Figure(sum(killed.held.values()), "reservations"),
        "midway_unbilled_answers": at_most(killed.unbilled, 0, "answers"),
        **_balanced("midway", killed.balance),
    }
    samples = {
        "cancelled": asdict(left) | {"held_gone_s": _summary(left.held_gone_s)},
        "killed_midway": asdict(killed) | {"held_gone_s": _summary(killed.held_gone_s)},
    }
    return figures, {"cancellations": samples}


def exactly_once(directory: Path, scale: float = 1.0) -> Part:
    """Send keyed calls up to six times through proxies that lose a tenth of the replies."""
    keys = _scaled(_KEYS, scale)
    result = uvloop.run(keyed.exactly_once(directory, keys=keys))
    statuses = dict(result.statuses)
    broken = sum(count for name, count in statuses.items() if not name.isdigit())
    figures = {
        "once_keys": at_least(result.keys, keys, "keys"),
        "once_sends_per_key": Figure(result.sends / keys, "requests"),
        "once_lost_replies_share": at_least(result.lost_replies / result.sends, 0.1, "share"),
        "once_rows_minus_keys": at_most(abs(result.rows - keys), 0, "rows"),
        "once_billed_twice": at_most(result.rows - result.requests_in_rows, 0, "requests"),
        "once_wrongly_billed": at_most(len(result.wrongly_billed), 0, "keys"),
        "once_different_answers": at_most(len(result.different), 0, "keys"),
        "once_replayed_keys": Figure(result.replayed, "keys"),
        "once_ledger_minus_answers_tokens": at_most(
            abs(result.ledger_tokens - result.answer_tokens), 0, "tokens"
        ),
        "once_ledger_minus_engine_tokens": at_most(
            abs(result.ledger_tokens - result.engine_tokens), 0, "tokens"
        ),
        "once_failures": at_most(_num_failed(statuses, "409"), 0, "answers"),
        "once_broken_by_nobody": at_most(max(0, broken - result.lost_replies), 0, "answers"),
        "once_counters_apart_tokens": at_most(result.balance.tokens_apart, 0, "tokens"),
        "once_counters_apart_nano_usd": at_most(result.balance.nano_usd_apart, 0, "nano-USD"),
    }
    samples = vars(result) | {
        "statuses": statuses,
        "balance": asdict(result.balance),
        "different": result.different[:20],
        "wrongly_billed": result.wrongly_billed[:20],
    }
    return figures, {"exactly_once": samples}


async def _cancel_and_kill(
    directory: Path, count: int, rounds: int
) -> tuple[cancelling.Cancelled, KilledMidway]:
    async with cancelling.arena(directory, gateways=2, burst=_BURST) as fleet:
        left = await cancelling.cancellations(fleet, count=count, burst=_BURST)
        return left, await killed_midway(fleet, rounds=rounds, burst=_BURST)


def _balanced(prefix: str, balance: Balance) -> dict[str, Figure]:
    return {
        f"{prefix}_used_minus_billed_tokens": at_most(balance.tokens_apart, 0, "tokens"),
        f"{prefix}_used_minus_billed_nano_usd": at_most(balance.nano_usd_apart, 0, "nano-USD"),
        f"{prefix}_rest_granted": equal(balance.rest_status, 200, "status"),
        f"{prefix}_rest_left_tokens": at_most(REST - balance.rest_tokens, 0, "tokens"),
        f"{prefix}_after_rest": equal(balance.after_rest_status, 429, "status"),
    }


def _num_failed(statuses: dict[str, int], *expected: str) -> int:
    """Count answers of statuses that nobody should meet."""
    fine = ("200", *expected)
    return sum(count for name, count in statuses.items() if name.isdigit() and name not in fine)


def equal(value: float, wanted: float, unit: str) -> Figure:
    """Make a figure whose goal is one value."""
    return Figure(value, unit, f"= {wanted:g}", value == wanted)


def _scaled(size: int, scale: float) -> int:
    return max(1, round(size * scale))


def _summary(values: list[float]) -> dict[str, float]:
    quantiles = (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
    return {"count": len(values)} | {name: percentile(values, q) for name, q in quantiles}
