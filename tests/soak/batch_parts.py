"""The parts of `soak-batch`: items that are stored once, batches that are never lost, size."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import uvloop

from scheduler.bench.report import Figure, at_least, at_most
from tests.soak import batch_fenced as fenced
from tests.soak import batch_lost as lost
from tests.soak.batch_queue_size import queue_size
from tests.soak.batch_validation import validated
from tests.soak.live_gateway import percentile

Part = tuple[dict[str, Figure], dict[str, Any]]

_ITEMS, _WORKERS, _FAULTS, _CLIENT_ITEMS = 5_000, 8, 60, 20_000
_BATCHES, _LINES, _STOPS = 200, 20, 30
_FILE_LINES, _VALIDATIONS, _BEFORE_S = 50_000, 6, 30.0
_QUEUED, _TENANTS = 1_000_000, 200


def batch_fenced(directory: Path, scale: float = 1.0) -> Part:
    """Kill and stop workers, and bare clients of the queue, beyond their leases."""
    return uvloop.run(_fenced(directory, scale))


def batch_lost(directory: Path, scale: float = 1.0) -> Part:
    """Stop PostgreSQL at once, again and again, while batches are submitted over HTTP."""
    batches, stops = _scaled(_BATCHES, scale), _scaled(_STOPS, scale)
    seen = uvloop.run(lost.lost_batches(directory, batches=batches, items=_LINES, stops=stops))
    figures = {
        "lost_postgres_stops": at_least(seen.stops, stops, "stops"),
        "lost_submitted": Figure(batches, "batches"),
        "lost_acknowledged": Figure(seen.batches, "batches"),
        "lost_batches": at_most(len(seen.lost_batches), 0, "batches"),
        "lost_batches_twice_for_a_key": at_most(seen.two_ids_for_a_key, 0, "batches"),
        "lost_items_run": Figure(seen.items, "items"),
        "lost_items": at_most(seen.lost_items, 0, "items"),
        "lost_failed_items": at_most(seen.failed_items, 0, "items"),
        "lost_duplicate_rows": at_most(seen.duplicate_rows + seen.unknown_rows, 0, "rows"),
        "lost_duplicate_results": at_most(seen.duplicate_results, 0, "results"),
    }
    return figures, {"batch_lost": asdict(seen)}


def batch_scale(directory: Path, scale: float = 1.0) -> Part:
    """Validate a file of 50,000 lines beside online requests, and work a million items off."""
    return uvloop.run(_scale(directory, scale))


async def _scale(directory: Path, scale: float) -> Part:
    file = await validated(
        directory / "gateway",
        lines=_scaled(_FILE_LINES, scale),
        rounds=_scaled(_VALIDATIONS, scale),
        before_s=_BEFORE_S * scale,
    )
    async with fenced.fenced_ground(directory / "queue") as ground:
        tenants = _scaled(_TENANTS, scale)
        queue = await queue_size(ground, items=_scaled(_QUEUED, scale), tenants=tenants)
    before, during, after = (
        percentile(took, 0.99) for took in (file.before_s, file.during_s, file.after_s)
    )
    figures = {
        "scale_lines": at_least(file.lines, _FILE_LINES, "lines"),
        "scale_validation_max_s": at_most(max(file.validated_s), 10, "s"),
        "scale_validation_rss_mib": at_most(file.max_rss_mib - file.idle_rss_mib, 95.3, "MiB"),
        "scale_online_ttft_p99_ratio": at_most(during / before, 1.2, "ratio"),
        "scale_online_ttft_p99_cancelling_ratio": Figure(after / before, "ratio"),
        "scale_online_failed": at_most(file.online_failed, 0, "requests"),
        "scale_queued_items": at_least(queue.items, _QUEUED, "items"),
        "scale_done_items": at_least(queue.done, _QUEUED, "items"),
        "scale_claim_p99_first_ms": at_most(percentile(queue.first_s, 0.99) * 1e3, 20, "ms"),
        "scale_claim_p99_midst_ms": at_most(percentile(queue.midst_s, 0.99) * 1e3, 20, "ms"),
        "scale_claim_p99_after_ms": at_most(percentile(queue.after_s, 0.99) * 1e3, 20, "ms"),
        "scale_items_per_s": Figure(queue.done / queue.done_s, "items/s"),
    }
    claims = {name: _summary(getattr(queue, name)) for name in ("first_s", "midst_s", "after_s")}
    ttft = {name: _summary(getattr(file, name)) for name in ("before_s", "during_s", "after_s")}
    return figures, {"validation": asdict(file) | ttft, "queue": asdict(queue) | claims}


async def _fenced(directory: Path, scale: float) -> Part:
    items, faults = _scaled(_ITEMS, scale), _scaled(_FAULTS, scale)
    async with fenced.fenced_ground(directory) as ground:
        work = await fenced.fenced_workers(ground, items=items, workers=_WORKERS, faults=faults)
        bare = await fenced.fenced_clients(ground, items=_scaled(_CLIENT_ITEMS, scale))
        recovery_s = await fenced.recovery_s(ground, workers=_WORKERS)
    both = (work.outcome, bare.outcome)
    figures = {
        "fenced_items": at_least(work.outcome.items, items, "items"),
        "fenced_faults": at_least(work.faults.total, faults, "faults"),
        "fenced_client_items": Figure(bare.outcome.items, "items"),
        "fenced_client_faults": Figure(bare.faults.total, "faults"),
        "fenced_late_results_dropped": Figure(sum(one.late for one in both), "results"),
        "fenced_duplicate_results": at_most(
            sum(one.duplicate_results for one in both), 0, "results"
        ),
        "fenced_duplicate_rows": at_most(sum(one.duplicate_rows for one in both), 0, "rows"),
        "fenced_stale_completions": at_most(sum(one.stale for one in both), 0, "items"),
        "fenced_lost_items": at_most(sum(one.lost for one in both), 0, "items"),
        "fenced_recovery_max_s": at_most(max(recovery_s), 45, "s"),
        "fenced_short_lease_recovery_max_s": Figure(max(work.faults.recovery_s), "s"),
    }
    samples = {
        "workers": {"faults": _faults(work), "outcome": asdict(work.outcome)},
        "clients": {"faults": _faults(bare), "outcome": asdict(bare.outcome)},
        "recovery_s": _summary(recovery_s),
    }
    return figures, {"batch_fenced": samples}


def _faults(seen: fenced.Fenced) -> dict[str, Any]:
    return asdict(seen.faults) | {"recovery_s": _summary(seen.faults.recovery_s)}


def _scaled(size: int, scale: float) -> int:
    return max(1, round(size * scale))


def _summary(values: list[float]) -> dict[str, float]:
    quantiles = (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
    return {"count": len(values)} | {name: percentile(values, q) for name, q in quantiles}
