"""What is counted of requests as they end, and how many series that can ever be."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from uuid import UUID

import pytest

from gateway.telemetry.metrics import Metrics
from gateway.telemetry.request_metrics import RequestMetrics
from gateway.telemetry.scheduler_metrics import SchedulerMetrics
from gateway.telemetry.tenant_metrics import TenantMetrics
from gateway.telemetry.vllm_names import VllmMetrics
from scheduler.facts import RequestFacts
from scheduler.order import BandShares, TenantShare
from scheduler.request import Band
from tests.gateway.telemetry.counted import counted
from tests.gateway.telemetry.timelines import TENANT, ended, refused


class Counting:
    """Count requests, and look values up by name and labels."""

    def __init__(
        self, shares: Sequence[BandShares] = (), *, second: VllmMetrics | None = None
    ) -> None:
        self.metrics = Metrics()
        self.requests = RequestMetrics(
            ["m"],
            TenantMetrics({"m": lambda: shares}, size=20),
            second=second,
            wall_clock=lambda: 1000.0,
        )
        self.metrics.add(self.requests)

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)

    def labels(self, name: str, label: str) -> set[str]:
        metrics = self.metrics.registry.collect()
        return {s.labels[label] for m in metrics for s in m.samples if s.name == name}

    @property
    def num_series(self) -> int:
        text, _ = self.metrics.render()
        return sum(not line.startswith(b"#") for line in text.splitlines())


CHAT = {"gen_ai_operation_name": "chat", "gen_ai_request_model": "m", "class": "default"}


def test_an_answered_request_is_in_each_metric_once() -> None:
    """Times, tokens, promises, waits and money are those of its timeline."""
    counting = Counting()
    counting.requests.tell(ended())
    expected: Mapping[str, tuple[float, Mapping[str, str]]] = {
        "gen_ai_server_time_to_first_token_seconds_sum": (1.0, CHAT),
        "gen_ai_server_time_per_output_token_seconds_sum": (0.09, CHAT),
        "gen_ai_server_request_duration_seconds_sum": (2.0, CHAT),
        "sluice_queue_time_seconds_sum": (0.5, {"class": "default"}),
        "sluice_stream_max_gap_seconds_sum": (0.3, {"class": "default"}),
        "sluice_requests_total": (1, {"class": "default", "outcome": "completed"}),
        "sluice_stream_events_total": (13, {}),
        "sluice_billed_usd_total": (0.005, {}),
        "sluice_queue_wait_seconds_total": (0.4, {"cause": "slots"}),
    }
    for name, (value, labels) in expected.items():
        shown = counting.value(name, **labels)
        assert shown is not None, name
        assert abs(shown - value) < 1e-9, name
    slo = {"class": "default"}
    assert counting.value("sluice_slo_attained_total", slo="ttft", met="false", **slo) == 1
    assert counting.value("sluice_slo_attained_total", slo="tpot", met="true", **slo) == 1
    usage = {"gen_ai_request_model": "m", "gen_ai_token_type": "input"}
    assert counting.value("gen_ai_client_token_usage_sum", **usage) == 30
    tenant = {"tenant": str(TENANT), "type": "cached"}
    assert counting.value("sluice_tenant_tokens_total", **tenant) == 16


def test_a_refusal_is_counted_by_what_refused() -> None:
    """It is in no histogram of answers, and in that of HTTP."""
    counting = Counting()
    counting.requests.tell(refused())
    labels = {"class": "default", "outcome": "refused", "limit": "tenant.requests_per_minute"}
    assert counting.value("sluice_admission_decisions_total", **labels) == 1
    assert not counting.labels("gen_ai_server_request_duration_seconds_count", "class")
    assert counting.labels(
        "http_server_request_duration_seconds_count", "http_response_status_code"
    ) == {"429"}


def test_a_request_without_a_token_is_of_no_promise() -> None:
    """It is counted by how it ended, and its wait is all of it."""
    counting = Counting()
    waited = RequestFacts(
        queued_s=100.1, num_ahead=1, admitted_s=None, first_token_s=None, ended_s=101.1
    )
    lost = {"facts": (waited,), "first_token_s": None, "last_token_s": None, "output_tokens": 0}
    counting.requests.tell(ended(outcome="failed", **lost))
    assert counting.labels("sluice_slo_attained_total", "slo") == set()
    assert counting.value("sluice_queue_time_seconds_sum", **{"class": "default"}) == 1.0
    assert counting.value("sluice_requests_total", **{"class": "default", "outcome": "failed"}) == 1


def test_promises_are_judged_as_records_judge_them() -> None:
    """What a request's own record says was missed is what is counted as not met."""
    for first_s, last_s in ((100.4, 101.5), (100.6, 101.5), (100.4, 101.3), (100.6, 101.5)):
        counting = Counting()
        timeline = ended(first_token_s=first_s, last_token_s=last_s)
        counting.requests.tell(timeline)
        for slo in ("ttft", "tpot"):
            met = str(slo not in timeline.missed()).lower()
            labels = {"class": "default", "slo": slo, "met": met}
            assert counting.value("sluice_slo_attained_total", **labels) == 1


def test_probes_are_counted_only_when_they_fail() -> None:
    """A supervisor's questions are no requests of anybody."""
    counting = Counting()
    nobody = {"tenant_id": None, "tier": "", "model": "", "limit": "", "code": ""}
    for status in (200, 503):
        counting.requests.tell(refused(route="/readyz", status=status, **nobody))
    statuses = "http_response_status_code"
    assert counting.labels("http_server_request_duration_seconds_count", statuses) == {"503"}


def test_only_kept_traces_are_exemplars() -> None:
    """A trace that was dropped would lead nowhere; the plain format has none at all."""
    counting = Counting()
    counting.requests.tell(ended(trace_id=0xABC, is_sampled=True, is_kept=False))
    text, _ = counting.metrics.render(is_open=True)
    assert b"trace_id" not in text
    counting.requests.tell(ended(trace_id=0xABC, is_kept=True))
    text, kind = counting.metrics.render(is_open=True)
    assert kind.startswith("application/openmetrics-text")
    assert text.count(f'trace_id="{0xABC:032x}"'.encode()) == 4
    assert b"trace_id" not in counting.metrics.render()[0]


def test_strangers_do_not_hide_what_a_route_answers() -> None:
    """Whatever was refused for want of a key before, an answer counts by its status and route."""
    counting = Counting()
    nobody = {"tenant_id": None, "tier": "", "model": "", "limit": ""}
    for number in range(300):
        for method in ("GET", "POST", "DELETE", f"M{number}"):
            counting.requests.tell(
                refused(method=method, route=f"/r{number}", status=401, code=f"c{number}", **nobody)
            )
    counting.requests.tell(refused(status=503, code="server_draining", limit=""))
    labels = {"http_request_method": "POST", "http_route": "/v1/chat/completions"}
    name, status = "http_server_request_duration_seconds_count", "http_response_status_code"
    assert counting.value(name, **labels, **{status: "503"}) == 1
    assert counting.labels(name, status) == {"401", "503"}
    assert len(counting.labels(name, "http_request_method")) == 5
    labels = {"class": "default", "outcome": "refused", "limit": "server_draining"}
    assert counting.value("sluice_admission_decisions_total", **labels) == 1
    assert counting.num_series < 257 * 17 + 17 + 300


def test_ten_thousand_tenants_stay_below_two_thousand_series() -> None:
    """Whatever comes in a request's words, labels are ours and few."""
    everyone = [UUID(int=number) for number in range(1, 10_001)]
    shares = [
        BandShares(
            band=band,
            began_s=0.0,
            ended_s=60.0,
            num_tenants=10_000,
            jain=0.9,
            tenants=tuple(share(tenant_id) for tenant_id in everyone),
        )
        for band in Band
    ]
    counts = counted()
    counting = Counting(shares, second=VllmMetrics({"m": lambda: counts}, {"m": 16}))
    counting.metrics.add(SchedulerMetrics({"m": lambda: counts}))
    draw = random.Random(5)
    for number, tenant_id in enumerate(everyone):
        counting.requests.tell(
            ended(
                tenant_id=tenant_id,
                tier=draw.choice(["default", "flex", "priority", f"tier-{number}"]),
                model=draw.choice(["m", f"model-{number}"]),
                route=draw.choice(["/v1/chat/completions", "/v1/completions"]),
                method=draw.choice(["POST", f"M{number}"]),
                outcome=draw.choice(["completed", "failed", "cancelled"]),
                status=draw.choice([200, 400, 401, 404, 405, 429, 500, 503]),
                ended_s=100.0 + number / 100,
            )
        )
        counting.requests.tell(refused(limit=f"limit-{number}", tenant_id=tenant_id))
    assert counting.num_series < 2000
    text = counting.metrics.render()[0]
    assert b"model-" not in text
    assert b"tier-" not in text
    tokens = [
        s.value
        for m in counting.metrics.registry.collect()
        for s in m.samples
        if s.name == "sluice_tenant_tokens_total" and s.labels["type"] == "input"
    ]
    assert len(tokens) <= 21
    labels = {"class": "flex", "model": "m", "tenant": "other"}
    assert counting.value("sluice_tenant_received_ratio", **labels) == pytest.approx(0.998)
    assert counting.value("sluice_fairness_jain_ratio", **{"class": "flex", "model": "m"}) == 0.9


def share(tenant_id: UUID) -> TenantShare:
    return TenantShare(
        tenant_id=str(tenant_id),
        organisation_id="",
        weight=1.0,
        received=1e-4,
        entitled=1e-4,
        wanted_more=True,
    )
