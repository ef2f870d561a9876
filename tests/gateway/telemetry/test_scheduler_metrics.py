"""Schedulers' own counts, as a scrape shows them, under our names and vLLM's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from prometheus_client.metrics_core import Metric

from gateway.telemetry.scheduler_metrics import SchedulerMetrics
from gateway.telemetry.vllm_names import VllmMetrics
from scheduler.counts import BandCount
from scheduler.facts import PreemptionCause
from scheduler.request import Band
from tests.gateway.telemetry.counted import counted
from tests.gateway.telemetry.timelines import ended


def shown(metrics: Iterable[Metric]) -> dict[tuple[str, ...], float]:
    return {
        (s.name, *(value for _, value in sorted(s.labels.items()))): s.value
        for metric in metrics
        for s in metric.samples
    }


def test_what_a_scheduler_counted_is_shown_by_model() -> None:
    """Tokens, steps and blocks are the scheduler's, in the families that are declared."""
    counts = counted()
    rows = shown(SchedulerMetrics({"m": lambda: counts}).collect())
    assert rows["sluice_tokens_total", "m", "prompt"] == 3
    assert rows["sluice_tokens_total", "m", "output"] == 4
    assert rows["sluice_engine_steps_total", "m"] == counts.num_steps == 4
    assert rows["sluice_engine_step_tokens_sum", "m"] == 3 + 3
    assert rows["sluice_engine_step_rows_bucket", "+Inf", "m"] == 4
    assert rows["sluice_kv_blocks", "m"] == 32
    assert rows["sluice_kv_blocks_free", "m"] + rows["sluice_kv_blocks_used", "m"] == 32
    assert rows["sluice_preemptions_total", "share", "m"] == 0


def test_bands_are_classes_and_causes_are_kept_apart() -> None:
    """Batch work that its window forces up is batch work, in one sum with the rest."""
    bands = (
        BandCount(Band.DEFAULT, 5, 2),
        BandCount(Band.DUE, 3, 1),
        BandCount(Band.BATCH, 30, 10),
    )
    counts = replace(
        counted(), bands=bands, preemptions={PreemptionCause.BAND: 4}, refusals={"queue": 6}
    )
    rows = shown(SchedulerMetrics({"m": lambda: counts}).collect())
    assert rows["sluice_queue_depth", "default", "m"] == 5
    assert rows["sluice_queue_depth", "batch", "m"] == 33
    assert rows["sluice_engine_running", "batch", "m"] == 11
    assert rows["sluice_preemptions_total", "band", "m"] == 4
    assert rows["sluice_admission_refusals_total", "queue", "m"] == 6


def test_vllms_names_have_vllms_labels() -> None:
    """Scalers find what waits, what runs and how full the cache is; each token has its time."""
    counts = replace(
        counted(), bands=(BandCount(Band.DEFAULT, 5, 2),), used_blocks=8, total_blocks=32
    )
    metrics = VllmMetrics({"m": lambda: counts}, {"m": 4})
    metrics.tell(ended())
    metrics.tell(ended(model="of somebody"))
    rows = shown(metrics.collect())
    assert rows["vllm:num_requests_waiting", "0", "m"] == 5
    assert rows["vllm:num_requests_running", "0", "m"] == 2
    assert rows["vllm:kv_cache_usage_perc", "0", "m"] == 0.25
    assert rows["vllm:gpu_cache_usage_perc", "0", "m"] == 0.25
    assert rows["vllm:cache_config_info", "4", "0", "32"] == 1
    assert rows["vllm:generation_tokens_total", "0", "m"] == 4
    assert rows["vllm:request_success_total", "0", "stop", "m"] == 1
    assert rows["vllm:e2e_request_latency_seconds_count", "0", "m"] == 1
    assert rows["vllm:inter_token_latency_seconds_count", "0", "m"] == 10
    assert {labels[-1] for labels in rows if labels[0].endswith("_count")} == {"m"}
