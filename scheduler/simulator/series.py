"""Curves of a run, ready to be drawn: service by tenant, TTFT, the queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.simulator.fairness import service_of_tenants
from scheduler.simulator.records import Run

_MAX_CURVES = 8
_NUM_POINTS = 120


@dataclass(frozen=True, slots=True)
class Curve:
    """Hold points of one line."""

    label: str
    x: Sequence[float]
    y: Sequence[float]


def service_curves(run: Run) -> list[Curve]:
    """Follow what the most served tenants get: weighted tokens a second, over time."""
    times = np.frombuffer(run.service.times_s, dtype=np.float64)
    tenants = np.frombuffer(run.service.tenants, dtype=np.int32)
    amounts = np.frombuffer(run.service.amounts, dtype=np.float64)
    edges = _edges(run)
    order = np.argsort(-service_of_tenants(run), kind="stable")[:_MAX_CURVES]
    centres = ((edges[1:] + edges[:-1]) / 2).tolist()
    curves = []
    for tenant in order:
        mine = tenants == tenant
        sums, _ = np.histogram(times[mine], bins=edges, weights=amounts[mine])
        curves.append(Curve(run.tenant_ids[tenant], centres, (sums / np.diff(edges)).tolist()))
    return curves


def ttft_curve(run: Run) -> Curve:
    """Give the share of requests whose first token had come by a time after their arrival."""
    ttfts = np.sort([record.ttft_s for record in run.online if record.has_begun])
    shares = np.arange(1, len(ttfts) + 1) / max(1, len(ttfts))
    return Curve("time to first token", ttfts.tolist(), shares.tolist())


def queue_curve(run: Run) -> Curve:
    """Count the requests that wait, over time."""
    times = np.frombuffer(run.queue.times_s, dtype=np.float64)
    depth = np.cumsum(np.frombuffer(run.queue.changes, dtype=np.int32))
    edges = _edges(run)
    at = np.searchsorted(times, edges, side="right") - 1
    return Curve("waiting", edges.tolist(), np.where(at >= 0, depth[at], 0).tolist())


def _edges(run: Run) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.linspace(0.0, max(run.end_s, 1e-9), _NUM_POINTS + 1)
