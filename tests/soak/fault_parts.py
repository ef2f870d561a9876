"""The parts of `soak-quota` in which stores fail: Redis, PostgreSQL, and keys that are revoked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import uvloop

from scheduler.bench.report import Figure, at_least, at_most
from tests.soak import frozen_gateway as frozen
from tests.soak import postgres_away as away
from tests.soak import store_faults
from tests.soak import stores_between as between
from tests.soak.faulty_stores import faulty_stores
from tests.soak.fickle_stores import Storm
from tests.soak.quota_parts import equal
from tests.soak.revocations import Revoked, revocations, without_redis
from tests.soak.store_faults import Sizes
from tests.soak.stores_between import Between

Part = tuple[dict[str, Figure], dict[str, Any]]

_ROUNDS, _AWAY_S = 3, 120.0
# Half of the keys have a stream running.
_KEYS, _TOGETHER = 200, 20
# A partition is longer than leases are, however small the run.
_BETWEEN_S, _PARTITION_S, _PARTITION_MIN_S = 300.0, 45.0, 33.0
_BETWEEN_PARTITIONS_S, _BETWEEN_KEYS = 12.0, 150
# Four ways of 150 turns, less those of ways that are cut off.
_BETWEEN_TURNS = 450


def redis_faults(directory: Path, scale: float = 1.0) -> Part:
    """Kill, empty, stop, cut off and reset Redis under two gateways that serve."""
    full = Sizes()
    sizes = Sizes(
        stop_s=max(2.0, full.stop_s * scale),
        black_hole_s=max(2.0, full.black_hole_s * scale),
        reset_s=max(1.0, full.reset_s * scale),
        calm_s=max(1.0, full.calm_s * scale),
    )
    rounds = _scaled(_ROUNDS, scale)
    storms = uvloop.run(store_faults.redis_faults(directory, sizes, rounds=rounds))
    faults = [fault for storm in storms for fault in storm.faults]
    seen = [fault for fault in faults if fault.is_away or fault.fault == "killed"]
    figures = {
        "redis_faults": at_least(len(faults), 5 * _ROUNDS, "faults"),
        "redis_requests": Figure(sum(_num_answers(storm) for storm in storms), "requests"),
        "redis_soft_5xx": at_most(sum(s.answers.num_5xx() for s in storms), 0, "answers"),
        "redis_soft_429": at_most(sum(s.answers.num_429() for s in storms), 0, "answers"),
        "redis_soft_failed": at_most(sum(s.answers.num_soft_failed for s in storms), 0, "requests"),
        "redis_hard_failed": at_most(sum(s.answers.num_hard_failed for s in storms), 0, "requests"),
        "redis_hard_let_through": at_most(sum(f.unwary for f in faults), 0, "requests"),
        "redis_without_header": at_most(sum(f.undegraded for f in faults), 0, "answers"),
        "redis_without_metric": at_most(
            sum(store_faults.GATEWAYS - f.gateways_degraded for f in seen), 0, "gateways"
        ),
        "redis_still_degraded": at_most(
            sum(f.gateways_still_degraded for f in faults), 0, "gateways"
        ),
        "redis_overshoot_tokens": at_most(
            max(max(s.max_used_and_held, s.max_billed, s.billed) - s.cap for s in storms),
            0,
            "tokens",
        ),
        "redis_caps_not_reached": at_most(sum(not s.is_used_up for s in storms), 0, "storms"),
        "redis_held_left_tokens": at_most(sum(s.held for s in storms), 0, "tokens"),
        "redis_used_minus_billed_tokens": at_most(
            max(abs(s.used - s.billed) for s in storms), 0, "tokens"
        ),
    }
    for name in dict.fromkeys(fault.fault for fault in faults):
        same = [fault for fault in faults if fault.fault == name]
        back_s = max(fault.back_s for fault in same)
        added_s = max(fault.added_p99_s for fault in same)
        figures[f"redis_{name}_back_s"] = at_most(back_s, 10, "s")
        figures[f"redis_{name}_added_p99_ms"] = at_most(added_s * 1000, 500, "ms")
    return figures, {"redis_faults": [asdict(storm) for storm in storms]}


def postgres_away(directory: Path, scale: float = 1.0) -> Part:
    """Stop PostgreSQL under three gateways, and kill one of them midway."""
    result = uvloop.run(away.postgres_away(directory, away_s=max(6.0, _AWAY_S * scale)))
    answers = result.answers
    figures = {
        "postgres_away_s": at_least(result.away_s, _AWAY_S, "s"),
        "postgres_answers": Figure(result.whole, "answers"),
        "postgres_soft_failed": at_most(answers.num_soft_failed, 0, "requests"),
        "postgres_hard_failed": at_most(answers.num_hard_failed + result.hard_5xx, 0, "requests"),
        "postgres_died_with_gateway": Figure(result.died, "requests"),
        "postgres_answers_without_row": at_most(result.missing, 0, "rows"),
        "postgres_rows_without_request": at_most(result.unasked, 0, "rows"),
        "postgres_duplicate_rows": at_most(result.duplicates, 0, "rows"),
        "postgres_rows_minus_sums": at_most(abs(result.rows - result.requests_by_hour), 0, "rows"),
        "postgres_unready": at_most(result.unready, 0, "looks"),
        "postgres_without_metric": at_most(
            away.GATEWAYS - 1 - result.gateways_degraded, 0, "gateways"
        ),
        "postgres_max_spool_rows": Figure(result.max_depth, "rows"),
        "postgres_spool_through_s": at_most(result.depth_gone_s, 10, "s"),
        "postgres_restart_s": Figure(result.restarted_s, "s"),
        "postgres_replayed_s": at_most(result.replayed_s, 10, "s"),
        "postgres_p99_ms": Figure(result.away_p99_s * 1000, "ms"),
        "postgres_held_left_tokens": at_most(result.held, 0, "tokens"),
        "postgres_used_minus_billed_tokens": at_most(abs(result.used - result.billed), 0, "tokens"),
    }
    return figures, {"postgres_away": asdict(result)}


def gateway_frozen(directory: Path, scale: float = 1.0) -> Part:
    """Freeze a gateway for longer than its leases; it takes as long whatever the scale."""
    result = uvloop.run(frozen.frozen_gateway(directory))
    figures = {
        "frozen_used_by_others_tokens": Figure(result.billed_frozen, "tokens"),
        "frozen_overshoot_tokens": at_most(
            max(result.billed, result.used) - result.cap, 0, "tokens"
        ),
        "frozen_held_left_tokens": at_most(result.held, 0, "tokens"),
        "frozen_used_minus_billed_tokens": at_most(abs(result.used - result.billed), 0, "tokens"),
    }
    return figures, {"gateway_frozen": asdict(result)}


def stores_between(directory: Path, scale: float = 1.0) -> Part:
    """Have two gateways serve over stores that are neither up nor down."""
    for_s = max(_BETWEEN_S * scale, _PARTITION_MIN_S + 4)
    partition_s = _PARTITION_S if scale >= 0.3 else _PARTITION_MIN_S
    each_s = partition_s + _BETWEEN_PARTITIONS_S
    partitions = [3 + number * each_s for number in range(int((for_s - 3) / each_s) or 1)]
    storm = Storm(for_s, partitions, partition_s)
    keys = max(20, round(_BETWEEN_KEYS * scale))
    result = uvloop.run(between.stores_between(directory, storm, keys=keys))
    turns = result.turns
    figures = {
        "between_requests": Figure(result.requests, "requests"),
        "between_answers": Figure(result.answers, "answers"),
        "between_turns": at_least(sum(turns.moods.values()), _BETWEEN_TURNS, "turns"),
        "between_kills": at_least(turns.kills, 10, "kills"),
        "between_partitions": at_least(turns.partitions, 4, "partitions"),
        "between_postgres_restarts": Figure(turns.postgres_restarts, "restarts"),
        "between_redis_kills": Figure(turns.redis_kills, "kills"),
        "between_missing_rows": at_most(result.missing, 0, "rows"),
        "between_duplicate_rows": at_most(result.duplicates, 0, "rows"),
        "between_rows_without_answer": Figure(result.rows - result.answers, "rows"),
        "between_unexplained_rows": at_most(result.unexplained, 0, "rows"),
        "between_rows_minus_sums": at_most(abs(result.rows - result.rows_by_hour), 0, "rows"),
        "between_overshoot_tokens": at_most(
            max(result.redis_overshoot, result.ledger_overshoot), 0, "tokens"
        ),
        "between_samples": Figure(result.redis_samples + result.ledger_samples, "samples"),
        "between_billed_above_answers_tokens": at_most(result.billed_above_answers, 0, "tokens"),
        "between_billed_below_answers_tokens": Figure(result.billed_below_answers, "tokens"),
        "between_held_gone_s": at_most(result.held_gone_s, 40, "s"),
        "between_used_minus_billed_tokens": equal(result.apart, 0, "tokens"),
    }
    return figures, {"stores_between": asdict(result) | {"direction": _direction(result)}}


def _direction(result: Between) -> str:
    """Say whose any error is."""
    if result.apart or result.apart_tenant:
        side = "ahead of" if result.apart + result.apart_tenant > 0 else "behind"
        of_counters = f"counters are {side} the ledger, and mended by the reconciliation"
    else:
        of_counters = "counters and ledger agree"
    below = result.billed_below_answers
    return f"{of_counters}; {below} tokens that clients got were not billed, none too many were"


def revocation(directory: Path, scale: float = 1.0) -> Part:
    """Revoke keys that are used, with Redis and without it."""
    normal, alone = uvloop.run(_revoke(directory, _scaled(_KEYS, scale)))
    figures: dict[str, Figure] = {}
    for name, revoked, bound_s in (("", normal, 1), ("_without_redis", alone, 10)):
        figures[f"revoked{name}"] = at_least(len(revoked.requests_s), _KEYS, "keys")
        figures[f"revoked{name}_max_s"] = at_most(revoked.longest_s, bound_s, "s")
        figures[f"revoked{name}_requests_p50_s"] = Figure(median(revoked.requests_s), "s")
        figures[f"revoked{name}_streams_p50_s"] = Figure(median(revoked.streams_s), "s")
        figures[f"revoked{name}_streams_not_ended"] = at_most(revoked.unended, 0, "streams")
    return figures, {"revocation": {"normal": asdict(normal), "without_redis": asdict(alone)}}


async def _revoke(directory: Path, trials: int) -> Sequence[Revoked]:
    async with faulty_stores(directory, size=2) as stores:
        return [
            await revoke(stores, trials=trials, together=_TOGETHER, seed=1)
            for revoke in (revocations, without_redis)
        ]


def _num_answers(storm: store_faults.Storm) -> int:
    return sum(storm.answers.soft.values()) + sum(storm.answers.hard.values())


def _scaled(size: int, scale: float) -> int:
    return max(2, round(size * scale))
