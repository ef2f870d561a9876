"""What the process counts about itself, in Prometheus's format on the admin port.

What parts of the gateway count one at a time is here; what is read off others when somebody asks is
added as a collector (`add`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.telemetry.exposition import render

# A second series for each counter, to say since when it counts: a restart shows that too.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Collects(Protocol):
    """Yield metrics when somebody asks, from any thread."""

    def collect(self) -> Iterable[Metric]: ...


class _Registered(Collector):
    """Be of the type that a registry takes."""

    def __init__(self, source: Collects) -> None:
        self._source = source

    def collect(self) -> Iterable[Metric]:
        return self._source.collect()


class Metrics:
    """Hold the metrics of one gateway, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.quota_degraded = Gauge(
            "sluice_quota_degraded",
            "1 while the shared counters do not answer and limits are kept by each process.",
            registry=self.registry,
        )
        self.quota_denied = Counter(
            "sluice_quota_denied",
            "Requests refused by a limit.",
            ("limit", "scope"),
            registry=self.registry,
        )
        self.quota_leases = Gauge(
            "sluice_quota_leases",
            "Reservations that are held, of all processes.",
            registry=self.registry,
        )
        self.quota_reaped = Counter(
            "sluice_quota_reaped",
            "Reservations whose process stopped renewing them.",
            registry=self.registry,
        )
        self.quota_drift = Gauge(
            "sluice_quota_drift",
            "Largest difference between a counter and the ledger, as a share of its limit.",
            registry=self.registry,
        )
        self.quota_repairs = Counter(
            "sluice_quota_repairs",
            "Counters that were corrected from the ledger.",
            registry=self.registry,
        )
        self.quota_thresholds = Counter(
            "sluice_quota_thresholds",
            "Soft thresholds that were passed.",
            ("percent", "metric"),
            registry=self.registry,
        )
        self.spool_depth = Gauge(
            "sluice_ledger_spool_depth",
            "Usage rows on this machine that are not in the ledger yet.",
            registry=self.registry,
        )
        self.auth_degraded = Gauge(
            "sluice_auth_degraded",
            "1 while keys are accepted from memory because the database does not answer.",
            registry=self.registry,
        )
        self.audit_lost = Gauge(
            "sluice_audit_head_lost",
            "1 while the audit log lacks the head that this machine has kept of it.",
            registry=self.registry,
        )
        self.audit_post_failures = Counter(
            "sluice_audit_webhook_failures",
            "Posts of the audit log's head that failed.",
            registry=self.registry,
        )
        self.batch_dead_items = Gauge(
            "sluice_batch_dead_items",
            "Items of batches that killed their workers and wait for an operator, of all tenants.",
            registry=self.registry,
        )
        self.records_dropped = Counter(
            "sluice_request_records_dropped",
            "Records of finished requests that were not kept: too many, no room, or no database.",
            ("cause",),
            registry=self.registry,
        )
        # Zeros, so that the first of each is seen as a rise.
        for cause in ("rate", "room", "size", "store"):
            self.records_dropped.labels(cause)

    def add(self, source: Collects) -> None:
        """Show what `source` yields too."""
        self.registry.register(_Registered(source))

    def render(self, *, is_open: bool = False) -> tuple[bytes, str]:
        """Write all of it, as OpenMetrics if it `is_open`; returns text and content type.

        It takes milliseconds, so call it on a thread.
        """
        return render(self.registry.collect(), is_open=is_open)
