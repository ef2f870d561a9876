"""What schedulers and engines have done and hold, read as somebody asks.

Nothing is counted here: schedulers count for themselves, and are asked under the lock that their
steps take, for some tens of microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

from gateway.telemetry import families
from gateway.telemetry.families import Family
from gateway.telemetry.series import class_of, empty, metric_of
from scheduler.counts import Counts
from scheduler.facts import PreemptionCause
from scheduler.watch.step_counts import Histogram


class SchedulerMetrics:
    """Show schedulers, each by its model's name as what reads its counts; any thread may."""

    def __init__(self, schedulers: Mapping[str, Callable[[], Counts]]) -> None:
        self._schedulers = schedulers

    def collect(self) -> Iterator[Metric]:
        """Yield all figures, from any thread."""
        read = {model: counts() for model, counts in self._schedulers.items()}
        for family, figure in _FIGURES.items():
            yield metric_of(family, [((model,), figure(now)) for model, now in read.items()])
        for family, histogram in _HISTOGRAMS.items():
            metric = empty(family)
            for model, now in read.items():
                metric.samples.extend(_samples(family.name, model, histogram(now)))
            yield metric
        for family, by_label in _BY_LABEL.items():
            yield metric_of(
                family,
                [
                    ((model, label) if family.labels[0] == "model" else (label, model), value)
                    for model, now in read.items()
                    for label, value in by_label(now).items()
                ],
            )


def _samples(name: str, model: str, histogram: Histogram) -> Iterator[Sample]:
    bounds = [*(repr(bound) for bound in histogram.bounds), "+Inf"]
    for bound, number in zip(bounds, histogram.counts, strict=True):
        yield Sample(f"{name}_bucket", {"model": model, "le": bound}, number)
    yield Sample(f"{name}_count", {"model": model}, histogram.counts[-1])
    yield Sample(f"{name}_sum", {"model": model}, histogram.total)


def _queued(now: Counts) -> dict[str, float]:
    return _by_class((class_of(one.band), one.queued) for one in now.bands)


def _running(now: Counts) -> dict[str, float]:
    return _by_class((class_of(one.band), one.running) for one in now.bands)


def _by_class(numbers: Iterator[tuple[str, int]]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for name, number in numbers:
        sums[name] = sums.get(name, 0) + number
    return sums


def _preemptions(now: Counts) -> dict[str, float]:
    # Zeros, so that the first of each is seen as a rise.
    return {cause.value: now.preemptions.get(cause, 0) for cause in PreemptionCause}


_FIGURES: Final[Mapping[Family, Callable[[Counts], float]]] = {
    families.SLOTS: lambda now: now.max_rows,
    families.KV_BLOCKS: lambda now: now.total_blocks,
    families.KV_USED: lambda now: now.used_blocks,
    families.KV_FREE: lambda now: now.total_blocks - now.used_blocks,
    families.KV_CACHED: lambda now: now.cached_blocks,
    families.KV_SHARED: lambda now: now.shared_blocks,
    families.KV_EVICTED: lambda now: now.num_evicted_blocks,
    families.STEPS: lambda now: now.num_steps,
    families.PREFIX_HITS: lambda now: now.num_cached_tokens,
    families.WASTED: lambda now: now.num_wasted_tokens,
    families.EXPIRED: lambda now: now.num_expired,
    families.STEP_ERROR: lambda now: now.step_error,
    families.STEP_BIAS: lambda now: now.step_bias,
}
_HISTOGRAMS: Final[Mapping[Family, Callable[[Counts], Histogram]]] = {
    families.STEP_TIME: lambda now: now.seconds,
    families.STEP_ROWS: lambda now: now.rows,
    families.STEP_TOKENS: lambda now: now.tokens,
}
_BY_LABEL: Final[Mapping[Family, Callable[[Counts], Mapping[str, float]]]] = {
    families.QUEUE_DEPTH: _queued,
    families.RUNNING: _running,
    families.PHASES: lambda now: {"prefill": now.num_prefilling, "decode": now.num_decoding},
    families.TOKENS: lambda now: {
        "prompt": now.num_prompt_tokens,
        "output": now.num_output_tokens,
    },
    families.COMPUTED: lambda now: {
        "prefill": now.num_prefill_tokens,
        "decode": now.num_decode_tokens,
    },
    families.PREEMPTIONS: _preemptions,
    families.REFUSALS: lambda now: now.refusals,
}
