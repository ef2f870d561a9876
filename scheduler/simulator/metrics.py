"""What a run says in figures, under the names of `sluice simulate --json`.

Service is weighted tokens, `wp * prompt + wq * output`. A request meets its promises if it was
served to its end and broke none; attainment is of those that were taken in and not cancelled.
Goodput counts those that met all, per second in which requests came, or of the whole run where
nothing was promised, for then late ones count too. Refused requests are counted apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler.request import FinishReason
from scheduler.simulator.fairness import (
    entitlements,
    interval_service_difference,
    jain,
    service_differences,
    service_of_tenants,
)
from scheduler.simulator.records import Record, Run

_NUM_DECILES = 10


def measure(run: Run) -> dict[str, Any]:
    """Compute all figures of a run; a figure of which there is nothing to tell is None."""
    online = run.online
    begun = [record for record in online if record.has_begun]
    span_s = _goodput_span_s(run)
    differences = service_differences(run)
    return {
        "requests": len(online),
        "completed": sum(record.is_complete for record in online),
        "rejected": sum(record.reject is not None for record in online),
        "refusals": _refusals(online),
        "expired": _num_expired(online),
        "cancelled": sum(record.is_cancelled for record in online),
        "preemptions": sum(record.num_preemptions for record in run.records),
        "recomputed_tokens": run.num_recomputed_tokens,
        "virtual_seconds": run.end_s,
        "tokens_per_s": ratio(sum(num_served_tokens(r) for r in run.records), run.end_s),
        "goodput_rps": ratio(sum(record.meets_slo for record in online), span_s),
        "goodput_tokens_per_s": ratio(
            sum(record.arrival.num_tokens for record in online if record.meets_slo), span_s
        ),
        "slo_attainment": attainment(online),
        "prefix_hit_share": ratio(
            sum(r.num_cached_tokens for r in begun), sum(r.arrival.num_prompt_tokens for r in begun)
        ),
        "jain": jain(run),
        "service_difference": {
            "max": max(differences, default=0.0),
            "avg": sum(differences) / max(1, len(differences)),
        },
        "interval_service_difference_max": interval_service_difference(run),
        **latencies(begun),
        "num_steps": run.num_steps,
        "rows_per_step": ratio(run.num_rows, run.num_steps),
        "tenants": _tenants(run),
        "prompt_length_deciles": _deciles(online),
    }


def latencies(records: Sequence[Record]) -> dict[str, Any]:
    """Give quantiles of the latencies of requests that have begun."""
    return {
        "ttft_s": quantiles(record.ttft_s for record in records),
        "tpot_s": quantiles(r.tpot_s for r in records if r.tpot_s is not None),
        "max_gap_s": quantiles(r.max_gap_s for r in records if r.num_output_tokens > 1),
    }


def quantiles(values: Iterable[float]) -> Mapping[str, float | None]:
    """Give the median and two upper quantiles, interpolated."""
    array: NDArray[np.float64] = np.fromiter(values, dtype=np.float64)
    if not len(array):
        return {"p50": None, "p90": None, "p99": None}
    p50, p90, p99 = (float(value) for value in np.percentile(array, (50, 90, 99)))
    return {"p50": p50, "p90": p90, "p99": p99}


def attainment(records: Iterable[Record]) -> float | None:
    """Tell which share of the requests that were taken in, and not cancelled, met all promises.

    None: none of them was promised anything.
    """
    records = list(records)
    if not any(record.is_promised for record in records):
        return None
    taken = [record for record in records if record.reject is None and not record.is_cancelled]
    return ratio(sum(record.meets_slo for record in taken), len(taken))


def num_served_tokens(record: Record) -> int:
    """Count the tokens that a request has had: its prompt from the first output token on."""
    if not record.has_begun:
        return 0
    return record.arrival.num_prompt_tokens + record.num_output_tokens


def ratio(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator else None


def _refusals(records: Sequence[Record]) -> dict[str, int]:
    """Count refusals by what they were for."""
    refused = sorted(record.refused_for for record in records if record.reject is not None)
    return dict(Counter(refused))


def _num_expired(records: Sequence[Record]) -> int:
    return sum(record.finish_reason is FinishReason.EXPIRED for record in records)


def _goodput_span_s(run: Run) -> float:
    if any(record.has_slo for record in run.online):
        return run.workload.duration_s or run.end_s
    return run.end_s


def _tenants(run: Run) -> list[dict[str, Any]]:
    """Describe each tenant that has arrivals, those with the most service first."""
    service = service_of_tenants(run)
    entitled = entitlements(run)
    total = float(service.sum())
    records_of: dict[int, list[Record]] = {}
    for record in run.online:
        records_of.setdefault(record.tenant, []).append(record)
    order = sorted(records_of, key=lambda tenant: (-service[tenant], tenant))
    return [
        {
            "tenant": run.tenant_ids[tenant],
            "organisation": records[0].arrival.organisation_id or None,
            "weight": run.weights[tenant],
            "requests": len(records),
            "completed": sum(record.is_complete for record in records),
            "rejected": sum(record.reject is not None for record in records),
            "refusals": _refusals(records),
            "expired": _num_expired(records),
            "cancelled": sum(record.is_cancelled for record in records),
            "preemptions": sum(record.num_preemptions for record in records),
            "tokens": sum(num_served_tokens(record) for record in records),
            "service": float(service[tenant]),
            "service_share": ratio(float(service[tenant]), total),
            "entitled_share": ratio(float(entitled[tenant]), total),
            "slo_attainment": attainment(records),
            **latencies([record for record in records if record.has_begun]),
        }
        for tenant in order
        for records in [records_of[tenant]]
    ]


def _deciles(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Split requests by the length of their prompts into tenths, the shortest first."""
    ordered = sorted(records, key=lambda record: record.arrival.num_prompt_tokens)
    bounds = [len(ordered) * n // _NUM_DECILES for n in range(_NUM_DECILES + 1)]
    parts = [ordered[a:b] for a, b in pairwise(bounds) if a < b]
    return [
        {
            "max_prompt_tokens": part[-1].arrival.num_prompt_tokens,
            "requests": len(part),
            "rejected": sum(record.reject is not None for record in part),
            "slo_attainment": attainment(part),
            "ttft_p99_s": quantiles(r.ttft_s for r in part if r.has_begun)["p99"],
        }
        for part in parts
    ]
