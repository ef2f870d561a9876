"""Every metric that a gateway exposes beside those of `metrics`: name, type, labels, meaning.

Names are OpenTelemetry's in Prometheus's spelling where it has one (`gen_ai_…`, `http_…`), else
`sluice_…`; https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-metrics/. Counters are named
as they are exposed, with `_total`. Labels hold nothing that a tenant chose: models are those that
are served, tenants the ids that we gave them and few of them (`tenant_ranks`), the rest our words.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]


class Family(NamedTuple):
    """Describe one metric; `name` is as it is exposed."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


_GEN_AI: Final = ("gen_ai_operation_name", "gen_ai_request_model", "class")

# Of requests, as they end.
TTFT: Final = Family(
    "gen_ai_server_time_to_first_token_seconds",
    "histogram",
    "From a request's first byte to its first token, its time in the queue included.",
    _GEN_AI,
)
TPOT: Final = Family(
    "gen_ai_server_time_per_output_token_seconds",
    "histogram",
    "Time between two tokens of an answer after its first, on average over the answer.",
    _GEN_AI,
)
DURATION: Final = Family(
    "gen_ai_server_request_duration_seconds",
    "histogram",
    "From a request's first byte to its end.",
    _GEN_AI,
)
TOKEN_USAGE: Final = Family(
    "gen_ai_client_token_usage",
    "histogram",
    "Tokens that a request is billed.",
    ("gen_ai_request_model", "gen_ai_token_type"),
)
HTTP_DURATION: Final = Family(
    "http_server_request_duration_seconds",
    "histogram",
    "From a request's first byte to its end, by its answer.",
    ("http_request_method", "http_response_status_code", "http_route"),
)
QUEUE_TIME: Final = Family(
    "sluice_queue_time_seconds",
    "histogram",
    "Time that a request waited before it first had a slot.",
    ("class",),
)
MAX_GAP: Final = Family(
    "sluice_stream_max_gap_seconds",
    "histogram",
    "Longest time between two events of a streamed answer.",
    ("class",),
)
REQUESTS: Final = Family(
    "sluice_requests_total", "counter", "Requests that have ended.", ("class", "outcome")
)
DECISIONS: Final = Family(
    "sluice_admission_decisions_total",
    "counter",
    "Requests that were admitted or refused, and by what.",
    ("class", "limit", "outcome"),
)
WAITS: Final = Family(
    "sluice_queue_wait_seconds_total",
    "counter",
    "Time that requests waited before they first had a slot, by what kept it from them.",
    ("cause",),
)
SLO_ATTAINED: Final = Family(
    "sluice_slo_attained_total",
    "counter",
    "Requests whose tenant was promised a time, by whether it was kept.",
    ("class", "met", "slo"),
)
EVENTS: Final = Family("sluice_stream_events_total", "counter", "Events that streams were sent.")
STALLS: Final = Family(
    "sluice_stream_stall_seconds_total", "counter", "Time that writes waited for clients to read."
)
BILLED: Final = Family("sluice_billed_usd_total", "counter", "What requests were billed.")

# Of the tenants with the most tokens lately.
TENANT_TOKENS: Final = Family(
    "sluice_tenant_tokens_total", "counter", "Tokens by tenant.", ("tenant", "type")
)
TENANT_REQUESTS: Final = Family(
    "sluice_tenant_requests_total", "counter", "Requests that have ended.", ("outcome", "tenant")
)
TENANT_SLO: Final = Family(
    "sluice_tenant_slo_attained_total", "counter", "Promises by tenant.", ("met", "tenant")
)
ENTITLED: Final = Family(
    "sluice_tenant_entitled_ratio",
    "gauge",
    "Share of its class's service that a tenant was entitled to in the last whole minute.",
    ("class", "model", "tenant"),
)
RECEIVED: Final = Family(
    "sluice_tenant_received_ratio",
    "gauge",
    "Share of its class's service that a tenant received in the last whole minute.",
    ("class", "model", "tenant"),
)
JAIN: Final = Family(
    "sluice_fairness_jain_ratio",
    "gauge",
    "Jain's index of received over entitled in the last whole minute, of tenants that wanted more; "
    "1: all alike, or nobody did.",
    ("class", "model"),
)
BUSY_TENANTS: Final = Family(
    "sluice_fairness_tenants",
    "gauge",
    "Tenants that had requests throughout the last whole minute.",
    ("class", "model"),
)

# Of schedulers and engines, read as somebody asks.
QUEUE_DEPTH: Final = Family(
    "sluice_queue_depth", "gauge", "Requests that wait.", ("class", "model")
)
RUNNING: Final = Family(
    "sluice_engine_running", "gauge", "Requests that have a slot.", ("class", "model")
)
PHASES: Final = Family(
    "sluice_engine_rows",
    "gauge",
    "Requests that have a slot, by whether their prompt is computed or their answer drawn.",
    ("model", "phase"),
)
SLOTS: Final = Family("sluice_engine_slots", "gauge", "Requests that a step holds.", ("model",))
KV_BLOCKS: Final = Family("sluice_kv_blocks", "gauge", "KV blocks that there are.", ("model",))
KV_USED: Final = Family(
    "sluice_kv_blocks_used", "gauge", "KV blocks that running requests hold.", ("model",)
)
KV_FREE: Final = Family(
    "sluice_kv_blocks_free", "gauge", "KV blocks that no running request holds.", ("model",)
)
KV_CACHED: Final = Family(
    "sluice_kv_blocks_cached", "gauge", "KV blocks whose content can be found again.", ("model",)
)
KV_SHARED: Final = Family(
    "sluice_kv_blocks_shared", "gauge", "KV blocks that several requests hold.", ("model",)
)
KV_EVICTED: Final = Family(
    "sluice_kv_blocks_evicted_total",
    "counter",
    "KV blocks whose content was given up for other.",
    ("model",),
)
STEPS: Final = Family("sluice_engine_steps_total", "counter", "Steps that came back.", ("model",))
STEP_TIME: Final = Family(
    "sluice_engine_step_duration_seconds", "histogram", "How long steps took.", ("model",)
)
STEP_ROWS: Final = Family(
    "sluice_engine_step_rows", "histogram", "Rows that steps had.", ("model",)
)
STEP_TOKENS: Final = Family(
    "sluice_engine_step_tokens", "histogram", "Tokens that steps computed.", ("model",)
)
TOKENS: Final = Family(
    "sluice_tokens_total",
    "counter",
    "Tokens of the prompts of requests that were given a slot, and tokens drawn.",
    ("model", "type"),
)
COMPUTED: Final = Family(
    "sluice_engine_tokens_total",
    "counter",
    "Tokens that steps computed: of prompts, those computed again too, and of rows that decode.",
    ("model", "phase"),
)
PREFIX_HITS: Final = Family(
    "sluice_prefix_hit_tokens_total",
    "counter",
    "Tokens of prompts whose KV blocks were found.",
    ("model",),
)
WASTED: Final = Family(
    "sluice_recomputed_tokens_total", "counter", "Tokens computed again.", ("model",)
)
PREEMPTIONS: Final = Family(
    "sluice_preemptions_total",
    "counter",
    "Requests that were sent back from a slot, and for what.",
    ("cause", "model"),
)
REFUSALS: Final = Family(
    "sluice_admission_refusals_total",
    "counter",
    "Requests that a scheduler refused, and why.",
    ("cause", "model"),
)
EXPIRED: Final = Family(
    "sluice_queue_expired_total", "counter", "Requests that waited too long.", ("model",)
)
STEP_ERROR: Final = Family(
    "sluice_step_model_error_ratio",
    "gauge",
    "How far predictions of step times were off lately, as a share of the time.",
    ("model",),
)
STEP_BIAS: Final = Family(
    "sluice_step_model_bias_ratio",
    "gauge",
    "The same with its sign: above 0 where steps take less than predicted.",
    ("model",),
)

# Of the process and the machine.
OVERLOAD: Final = Family("sluice_overload_level", "gauge", "Overload level, from 0 to 4.")
LOOP_LAG: Final = Family(
    "sluice_loop_lag_seconds", "histogram", "How late the event loop was, four times a second."
)
LEDGER_LAG: Final = Family(
    "sluice_ledger_lag_seconds", "gauge", "Time since the ledger had all rows of this machine."
)
BATCH_ITEMS: Final = Family(
    "sluice_batch_items", "gauge", "Items of batches that are not over, of all tenants.", ("state",)
)
BATCH_AGE: Final = Family(
    "sluice_batch_oldest_pending_age_seconds",
    "gauge",
    "Age of the oldest batch with items that wait; 0: none.",
)
BATCH_EXPIRED: Final = Family(
    "sluice_batch_lease_expired_total", "counter", "Items taken back from workers that went away."
)
TRACES: Final = Family(
    "sluice_trace_requests_total",
    "counter",
    "Requests whose traces were sent, were dropped for want of room or a receiver, or were left "
    "out as their tenant had its part; where traces are sent.",
    ("outcome",),
)
LOG_DROPPED: Final = Family(
    "sluice_log_lines_dropped_total", "counter", "Lines of requests that the log did not take."
)
TRACKED: Final = Family(
    "sluice_tracked_tenants", "gauge", "Tenants that have a label; all others are 'other'."
)
COST: Final = Family(
    "sluice_machine_cost_usd_total", "counter", "What this machine has cost since the start."
)
GPU_BUSY: Final = Family(
    "sluice_gpu_utilization_ratio", "gauge", "Share of time that a kernel ran.", ("gpu",)
)
GPU_MEMORY: Final = Family(
    "sluice_gpu_memory_used_bytes", "gauge", "Memory of the GPU in use.", ("gpu",)
)
GPU_MEMORY_ALL: Final = Family(
    "sluice_gpu_memory_total_bytes", "gauge", "Memory of the GPU.", ("gpu",)
)
GPU_POWER: Final = Family("sluice_gpu_power_watts", "gauge", "Power that the GPU draws.", ("gpu",))

FAMILIES: Final = tuple(one for one in list(globals().values()) if isinstance(one, Family))
