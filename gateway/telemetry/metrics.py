"""What the process counts about itself, in Prometheus's format on the admin port."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


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

    def render(self) -> bytes:
        """Return all of it as text."""
        return generate_latest(self.registry)
