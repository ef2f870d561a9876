"""The metrics that others know from vLLM, under its names: for dashboards and scalers made for it.

Names, labels and buckets are those of vLLM's `v1/metrics/loggers.py`, deprecated spellings included
where something still reads them. They have colons, which Prometheus keeps for recording rules, so
that they are served only where they are asked for. Two mean something slightly else: vLLM observes
each time between two tokens, here each counts as the average of its answer; and `engine` is 0, as
a model has one engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client.metrics_core import Metric

from gateway.domain.timeline import Timeline
from gateway.telemetry.families import Family
from gateway.telemetry.series import Counts, Histograms, metric_of
from scheduler.counts import Counts as SchedulerCounts

_LABELS: Final = ("model_name", "engine")
_ENGINE: Final = "0"

RUNNING: Final = Family(
    "vllm:num_requests_running", "gauge", "Requests in model execution batches.", _LABELS
)
WAITING: Final = Family(
    "vllm:num_requests_waiting", "gauge", "Requests waiting to be processed.", _LABELS
)
KV_USAGE: Final = Family(
    "vllm:kv_cache_usage_perc", "gauge", "KV cache usage; 1 is all of it.", _LABELS
)
GPU_USAGE: Final = Family(
    "vllm:gpu_cache_usage_perc", "gauge", "As vllm:kv_cache_usage_perc, its older name.", _LABELS
)
CACHE_CONFIG: Final = Family(
    "vllm:cache_config_info",
    "gauge",
    "How the KV cache is divided.",
    ("block_size", "engine", "num_gpu_blocks"),
)
PREFIX_QUERIES: Final = Family(
    "vllm:prefix_cache_queries_total", "counter", "Prompt tokens looked up.", _LABELS
)
PREFIX_HITS: Final = Family(
    "vllm:prefix_cache_hits_total", "counter", "Prompt tokens found.", _LABELS
)
PREEMPTIONS: Final = Family("vllm:num_preemptions_total", "counter", "Preemptions.", _LABELS)
PROMPT_TOKENS: Final = Family("vllm:prompt_tokens_total", "counter", "Prompt tokens.", _LABELS)
OUTPUT_TOKENS: Final = Family(
    "vllm:generation_tokens_total", "counter", "Tokens generated.", _LABELS
)
SUCCESS: Final = Family(
    "vllm:request_success_total",
    "counter",
    "Requests that were answered, by why they ended.",
    (*_LABELS, "finished_reason"),
)
TTFT: Final = Family(
    "vllm:time_to_first_token_seconds", "histogram", "Time to the first token.", _LABELS
)
TPOT: Final = Family(
    "vllm:time_per_output_token_seconds", "histogram", "Time between tokens.", _LABELS
)
GAP: Final = Family(
    "vllm:inter_token_latency_seconds", "histogram", "Time between tokens.", _LABELS
)
LATENCY: Final = Family(
    "vllm:e2e_request_latency_seconds", "histogram", "Time from begin to end.", _LABELS
)
QUEUE: Final = Family(
    "vllm:request_queue_time_seconds", "histogram", "Time waiting for a slot.", _LABELS
)

_TTFT_BOUNDS: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_TPOT_BOUNDS: Final = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0),
)
_LATENCY_BOUNDS: Final = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0),
    *(240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_REASONS: Final = frozenset({"stop", "length", "abort", "error"})


class VllmMetrics:
    """Show what `counts` say, by model, and count requests that it is told of."""

    def __init__(
        self, counts: Mapping[str, Callable[[], SchedulerCounts]], block_sizes: Mapping[str, int]
    ) -> None:
        self._counts = counts
        self._block_sizes = block_sizes
        most = len(counts)
        self._ttft = Histograms(TTFT, _TTFT_BOUNDS, most=most)
        self._tpot = Histograms(TPOT, _TPOT_BOUNDS, most=most)
        self._gap = Histograms(GAP, _TPOT_BOUNDS, most=most)
        self._latency = Histograms(LATENCY, _LATENCY_BOUNDS, most=most)
        self._queue = Histograms(QUEUE, _LATENCY_BOUNDS, most=most)
        self._success = Counts(SUCCESS, most=most * len(_REASONS))

    def tell(self, timeline: Timeline) -> None:
        """Count a request that has ended, of a model that is served."""
        labels = (timeline.model, _ENGINE)
        if timeline.model not in self._counts or timeline.ended_s is None:
            return
        self._latency.of(*labels).observe(timeline.ended_s - timeline.began_s)
        for facts in timeline.facts:
            until_s = facts.ended_s if facts.admitted_s is None else facts.admitted_s
            self._queue.of(*labels).observe(until_s - facts.queued_s)
        first_s, last_s = timeline.first_token_s, timeline.last_token_s
        if first_s is not None:
            self._ttft.of(*labels).observe(first_s - timeline.began_s)
            later = timeline.output_tokens - timeline.num_choices
            if last_s is not None and later > 0:
                tpot_s = (last_s - first_s) * timeline.num_choices / later
                self._tpot.of(*labels).observe(tpot_s, later)
                self._gap.of(*labels).observe(tpot_s, later)
        for reason in timeline.finish_reasons or ("abort",):
            self._success.add((*labels, reason if reason in _REASONS else "stop"))

    def collect(self) -> Iterator[Metric]:
        """Yield all of them, from any thread."""
        figures = {(name, _ENGINE): read() for name, read in self._counts.items()}
        for family, figure in _FIGURES.items():
            yield metric_of(family, [(labels, figure(now)) for labels, now in figures.items()])
        yield metric_of(
            CACHE_CONFIG,
            [
                ((str(self._block_sizes[labels[0]]), _ENGINE, str(now.total_blocks)), 1)
                for labels, now in figures.items()
            ],
        )
        for one in (self._ttft, self._tpot, self._gap, self._latency, self._queue, self._success):
            yield one.collect()


def _usage(now: SchedulerCounts) -> float:
    return now.used_blocks / now.total_blocks


_FIGURES: Final[Mapping[Family, Callable[[SchedulerCounts], float]]] = {
    RUNNING: lambda now: sum(one.running for one in now.bands),
    WAITING: lambda now: sum(one.queued for one in now.bands),
    KV_USAGE: _usage,
    GPU_USAGE: _usage,
    PREFIX_QUERIES: lambda now: now.num_prompt_tokens,
    PREFIX_HITS: lambda now: now.num_cached_tokens,
    PREEMPTIONS: lambda now: sum(now.preemptions.values()),
    PROMPT_TOKENS: lambda now: now.num_prompt_tokens,
    OUTPUT_TOKENS: lambda now: now.num_output_tokens,
}
FAMILIES: Final = tuple(one for one in list(globals().values()) if isinstance(one, Family))
