"""Writes the Grafana boards in `dashboards/`; run `python helm/sluice/make_dashboards.py`.

Panels are two a row. `RATE` stands for the interval that Grafana finds best for a rate.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent / "dashboards"
RATE = "$__rate_interval"


class Panel(NamedTuple):
    """Describe a graph: its title, its unit in Grafana's words, its queries with their legends."""

    title: str
    unit: str
    queries: dict[str, str]


def rate(metric: str, by: str = "", where: str = "") -> str:
    """Write the rate of a counter, summed but for the labels of `by`."""
    summed = f"sum by ({by})" if by else "sum"
    return f"{summed} (rate({metric}{where}[{RATE}]))"


def quantile(part: float, metric: str, by: str = "") -> str:
    """Write a quantile of a histogram."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({part}, sum by ({labels}) (rate({metric}_bucket[{RATE}])))"


def quantiles(metric: str) -> dict[str, str]:
    """Write the median and the 99th percentile."""
    return {quantile(0.5, metric): "p50", quantile(0.99, metric): "p99"}


def mean(metric: str, by: str = "") -> str:
    """Write the average of what a histogram counted."""
    return f"{rate(f'{metric}_sum', by)} / {rate(f'{metric}_count', by)}"


def attained(by: str, metric: str = "sluice_slo_attained_total") -> str:
    """Write the share of promises that were kept."""
    kept = rate(metric, by, '{met="true"}')
    return f"{kept} / {rate(metric, by)}"


TTFT = "gen_ai_server_time_to_first_token_seconds"
TPOT = "gen_ai_server_time_per_output_token_seconds"
DURATION = "gen_ai_server_request_duration_seconds"

ALL_TOKENS = rate("sluice_tokens_total")
PROMPTS = rate("sluice_tokens_total", where='{type="prompt"}')

BOARDS: dict[str, tuple[str, list[Panel]]] = {
    "overview": (
        "Sluice: overview",
        [
            Panel(
                "Requests that end",
                "reqps",
                {rate("sluice_requests_total", "outcome"): "{{outcome}}"},
            ),
            Panel("Tokens", "none", {rate("sluice_tokens_total", "type"): "{{type}} tokens/s"}),
            Panel("Time to first token", "s", quantiles(TTFT)),
            Panel("Time per output token", "s", quantiles(TPOT)),
            Panel("Time of requests", "s", quantiles(DURATION)),
            Panel("Longest gap in a stream", "s", quantiles("sluice_stream_max_gap_seconds")),
            Panel("Promises kept", "percentunit", {attained("slo"): "{{slo}}"}),
            Panel(
                "Requests that wait", "none", {"sum by (class) (sluice_queue_depth)": "{{class}}"}
            ),
            Panel(
                "Answers by status",
                "reqps",
                {
                    rate(
                        "http_server_request_duration_seconds_count", "http_response_status_code"
                    ): "{{http_response_status_code}}"
                },
            ),
            Panel(
                "Overload level",
                "none",
                {"max by (instance) (sluice_overload_level)": "{{instance}}"},
            ),
            Panel("Event loop's lag", "s", quantiles("sluice_loop_lag_seconds")),
            Panel(
                "Traces, and lines and records that were dropped",
                "ops",
                {
                    rate("sluice_trace_requests_total", "outcome"): "traces {{outcome}}",
                    rate("sluice_log_lines_dropped_total"): "lines dropped",
                    rate("sluice_request_records_dropped_total", "cause"): "records: {{cause}}",
                },
            ),
            Panel(
                "Machine cost of a million tokens",
                "currencyUSD",
                {f"1e6 * {rate('sluice_machine_cost_usd_total')} / {ALL_TOKENS}": "USD"},
            ),
        ],
    ),
    "tenants": (
        "Sluice: tenants and fairness",
        [
            Panel(
                "Jain's index",
                "percentunit",
                {"min by (class) (sluice_fairness_jain_ratio)": "{{class}}"},
            ),
            Panel(
                "Tenants that are busy",
                "none",
                {"max by (class) (sluice_fairness_tenants)": "{{class}}"},
            ),
            Panel(
                "Entitled to, of a class",
                "percentunit",
                {"max by (class, tenant) (sluice_tenant_entitled_ratio)": "{{tenant}} {{class}}"},
            ),
            Panel(
                "Received, of a class",
                "percentunit",
                {"max by (class, tenant) (sluice_tenant_received_ratio)": "{{tenant}} {{class}}"},
            ),
            Panel(
                "Output tokens",
                "none",
                {rate("sluice_tenant_tokens_total", "tenant", '{type="output"}'): "{{tenant}}"},
            ),
            Panel(
                "Input tokens",
                "none",
                {rate("sluice_tenant_tokens_total", "tenant", '{type="input"}'): "{{tenant}}"},
            ),
            Panel(
                "Requests that end",
                "reqps",
                {rate("sluice_tenant_requests_total", "tenant, outcome"): "{{tenant}} {{outcome}}"},
            ),
            Panel(
                "Promises kept",
                "percentunit",
                {attained("tenant", "sluice_tenant_slo_attained_total"): "{{tenant}}"},
            ),
            Panel("Tenants with a label", "none", {"max (sluice_tracked_tenants)": "tenants"}),
        ],
    ),
    "scheduler": (
        "Sluice: scheduler",
        [
            Panel(
                "Time in the queue, p99",
                "s",
                {quantile(0.99, "sluice_queue_time_seconds", "class"): "{{class}}"},
            ),
            Panel(
                "What requests wait for",
                "none",
                {rate("sluice_queue_wait_seconds_total", "cause"): "{{cause}}"},
            ),
            Panel(
                "Requests that wait", "none", {"sum by (class) (sluice_queue_depth)": "{{class}}"}
            ),
            Panel(
                "Requests that run", "none", {"sum by (class) (sluice_engine_running)": "{{class}}"}
            ),
            Panel(
                "Admitted and refused",
                "reqps",
                {
                    rate(
                        "sluice_admission_decisions_total", "outcome, limit"
                    ): "{{outcome}} {{limit}}"
                },
            ),
            Panel(
                "Refused by the scheduler",
                "reqps",
                {rate("sluice_admission_refusals_total", "cause"): "{{cause}}"},
            ),
            Panel("Preemptions", "ops", {rate("sluice_preemptions_total", "cause"): "{{cause}}"}),
            Panel(
                "Tokens computed again",
                "none",
                {rate("sluice_recomputed_tokens_total"): "tokens/s"},
            ),
            Panel("Waited too long", "reqps", {rate("sluice_queue_expired_total"): "expired"}),
            Panel(
                "Error of predicted step times",
                "percentunit",
                {"max by (model) (sluice_step_model_error_ratio)": "{{model}}"},
            ),
            Panel(
                "Bias of predicted step times",
                "percentunit",
                {"max by (model) (sluice_step_model_bias_ratio)": "{{model}}"},
            ),
        ],
    ),
    "engine": (
        "Sluice: engine",
        [
            Panel("Steps", "ops", {rate("sluice_engine_steps_total", "model"): "{{model}}"}),
            Panel("Time of a step", "s", quantiles("sluice_engine_step_duration_seconds")),
            Panel(
                "Rows of a step", "none", {mean("sluice_engine_step_rows", "model"): "{{model}}"}
            ),
            Panel(
                "Tokens of a step",
                "none",
                {mean("sluice_engine_step_tokens", "model"): "{{model}}"},
            ),
            Panel(
                "Rows by phase",
                "none",
                {
                    "sum by (phase) (sluice_engine_rows)": "{{phase}}",
                    "sum (sluice_engine_slots)": "slots",
                },
            ),
            Panel(
                "Tokens computed",
                "none",
                {rate("sluice_engine_tokens_total", "phase"): "{{phase}} tokens/s"},
            ),
            Panel("Tokens", "none", {rate("sluice_tokens_total", "type"): "{{type}} tokens/s"}),
            Panel(
                "KV blocks",
                "none",
                {
                    "sum (sluice_kv_blocks_used)": "used",
                    "sum (sluice_kv_blocks_shared)": "shared",
                    "sum (sluice_kv_blocks_cached)": "cached",
                    "sum (sluice_kv_blocks_free)": "free",
                    "sum (sluice_kv_blocks)": "all",
                },
            ),
            Panel(
                "KV blocks given up", "ops", {rate("sluice_kv_blocks_evicted_total"): "blocks/s"}
            ),
            Panel(
                "Prompt tokens found in the cache",
                "percentunit",
                {f"{rate('sluice_prefix_hit_tokens_total')} / {PROMPTS}": "of prompts"},
            ),
            Panel(
                "GPU busy",
                "percentunit",
                {"max by (instance, gpu) (sluice_gpu_utilization_ratio)": "{{gpu}}"},
            ),
            Panel(
                "GPU memory",
                "bytes",
                {
                    "max by (instance, gpu) (sluice_gpu_memory_used_bytes)": "{{gpu}} used",
                    "max by (instance, gpu) (sluice_gpu_memory_total_bytes)": "{{gpu}} all",
                },
            ),
            Panel(
                "GPU power", "watt", {"max by (instance, gpu) (sluice_gpu_power_watts)": "{{gpu}}"}
            ),
        ],
    ),
    "quotas": (
        "Sluice: quotas and ledger",
        [
            Panel(
                "Refused by a limit",
                "reqps",
                {rate("sluice_quota_denied_total", "limit, scope"): "{{scope}} {{limit}}"},
            ),
            Panel("Reservations held", "none", {"max (sluice_quota_leases)": "reservations"}),
            Panel("Reservations taken back", "ops", {rate("sluice_quota_reaped_total"): "reaped"}),
            Panel(
                "Limits kept alone",
                "none",
                {"max by (instance) (sluice_quota_degraded)": "{{instance}}"},
            ),
            Panel("Counters off the ledger", "percentunit", {"max (sluice_quota_drift)": "drift"}),
            Panel("Counters corrected", "ops", {rate("sluice_quota_repairs_total"): "repairs"}),
            Panel(
                "Thresholds passed",
                "ops",
                {
                    rate(
                        "sluice_quota_thresholds_total", "metric, percent"
                    ): "{{metric}} {{percent}} %"
                },
            ),
            Panel("Billed", "currencyUSD", {f"3600 * {rate('sluice_billed_usd_total')}": "USD/h"}),
            Panel(
                "Rows on their way to the ledger",
                "none",
                {"sum by (instance) (sluice_ledger_spool_depth)": "{{instance}}"},
            ),
            Panel(
                "Ledger's lag",
                "s",
                {"max by (instance) (sluice_ledger_lag_seconds)": "{{instance}}"},
            ),
            Panel(
                "Keys accepted from memory",
                "none",
                {"max by (instance) (sluice_auth_degraded)": "{{instance}}"},
            ),
            Panel(
                "Audit log",
                "none",
                {
                    "max (sluice_audit_head_lost)": "head lost",
                    rate("sluice_audit_webhook_failures_total"): "failed posts/s",
                },
            ),
        ],
    ),
    "batch": (
        "Sluice: batches",
        [
            Panel("Items", "none", {"max by (state) (sluice_batch_items)": "{{state}}"}),
            Panel(
                "Age of the oldest batch that waits",
                "s",
                {"max (sluice_batch_oldest_pending_age_seconds)": "age"},
            ),
            Panel(
                "Items that end",
                "reqps",
                {rate("sluice_requests_total", "outcome", '{class="batch"}'): "{{outcome}}"},
            ),
            Panel(
                "Items that run, by engine",
                "none",
                {'sum by (instance) (sluice_engine_running{class="batch"})': "{{instance}}"},
            ),
            Panel(
                "Leases that ran out", "ops", {rate("sluice_batch_lease_expired_total"): "items/s"}
            ),
            Panel(
                "Items that wait for an operator",
                "none",
                {"max (sluice_batch_dead_items)": "items"},
            ),
        ],
    ),
}


def board(uid: str) -> dict[str, Any]:
    """Make the document of one board."""
    title, panels = BOARDS[uid]
    source = {"type": "prometheus", "uid": "${datasource}"}
    return {
        "uid": f"sluice-{uid}",
        "title": title,
        "tags": ["sluice"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "label": "Prometheus",
                    "type": "datasource",
                    "query": "prometheus",
                    "current": {},
                }
            ]
        },
        "panels": [
            {
                "id": number + 1,
                "type": "timeseries",
                "title": panel.title,
                "datasource": source,
                "gridPos": {"h": 8, "w": 12, "x": 12 * (number % 2), "y": 8 * (number // 2)},
                "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
                "options": {"legend": {"displayMode": "list", "placement": "bottom"}},
                "targets": [
                    {"refId": chr(ord("A") + place), "expr": expr, "legendFormat": legend}
                    for place, (expr, legend) in enumerate(panel.queries.items())
                ],
            }
            for number, panel in enumerate(panels)
        ],
    }


def text(uid: str) -> str:
    """Write one board as it stands in its file."""
    return json.dumps(board(uid), indent=2) + "\n"


if __name__ == "__main__":
    for uid in BOARDS:
        (HERE / f"{uid}.json").write_text(text(uid))
