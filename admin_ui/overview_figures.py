"""The figures of the overview: what its tiles say, and the points of its charts.

Both for the page as it is opened and for what follows it live, so that the two never differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from admin_ui import formats
from gateway.services.admin import Sample
from scheduler.request import Band

# The bands as charts draw them; batch work that is due is batch work still.
BANDS: Final = ("priority", "default", "flex", "batch")


def figures_of(view: Mapping[str, Any]) -> dict[str, str]:
    """Return what the tiles say, by name."""
    models, ended = view["models"], view["ended"]
    jain, met = _fairness(view["fairness"])
    first = view["first_tokens"]
    return {
        "running": formats.whole(_sum(models, "running")),
        "waiting": formats.whole(_sum(models, "queued")),
        "output_rate": formats.rate(_sum(models, "output_tokens_per_s")),
        "input_rate": f"{formats.rate(_sum(models, 'prompt_tokens_per_s'))} in",
        "attained": formats.percent(ended["attained"]),
        "promised": _counted(ended["promised"], "promised"),
        "jain": formats.index(jain),
        "jain_of": f"{met} tenants met" if met else "no tenants met",
        "kv_used": formats.percent(max((one["kv_used"] for one in models), default=None)),
        "preemptions": _counted(_sum(models, "num_preemptions"), "preempted since start"),
        "backlog": formats.seconds(max((one["backlog_s"] for one in models), default=None)),
        "refused": _counted(_sum(models, "num_rejected"), "refused since start"),
        "ttft_p50": formats.sampled_seconds(first["p50_s"], first["num_drawn"]),
        "ttft_p99": formats.sampled_seconds(first["p99_s"], first["num_drawn"]),
        "ended": _counted(ended["requests"], "ended per minute"),
        "failed": _counted(ended["failed"], "failed"),
    }


def point_of(sample: Sample) -> dict[str, Any]:
    """Return what a sample adds to each chart, the time first; None is a gap."""
    queued = [sample.queued[Band[name.upper()]] for name in BANDS]
    queued[-1] += sample.queued[Band.DUE]
    first, at_s = sample.first_tokens, round(sample.at_s, 1)
    quantiles = [first.p50_s, first.p95_s, first.p99_s]
    return {
        "queue": [at_s, *queued],
        "ttft": [at_s, *(None if one is None else round(one * 1000, 1) for one in quantiles)],
    }


def columns_of(samples: Sequence[Sample], chart: str) -> list[list[float | None]]:
    """Return the points of a chart as columns, the times first."""
    points = [point_of(sample)[chart] for sample in samples]
    width = len(point_of(samples[0])[chart]) if samples else 1
    return [[point[place] for point in points] for place in range(width)]


def _fairness(bands: Sequence[Mapping[str, Any]]) -> tuple[float | None, int]:
    """Return the least fair band's index, and how many tenants met in it; None: nobody met."""
    met = [band for band in bands if band["tenants"] > 1]
    if not met:
        return None, 0
    least = min(met, key=lambda band: band["jain"])
    return least["jain"], least["tenants"]


def _sum(models: Sequence[Mapping[str, Any]], name: str) -> float | None:
    found = [model[name] for model in models if model[name] is not None]
    return sum(found) if found else None


def _counted(number: float | None, what: str) -> str:
    return f"{formats.whole(number)} {what}"
