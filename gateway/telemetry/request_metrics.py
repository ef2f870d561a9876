"""What requests took, counted once each as it ends, and nothing on its way.

`tell` costs a dozen additions. What it is told in words is held to what we know: a model that is
not served, a tier, a method or an outcome that is none of ours is `other`, so that no client can
make a series. Times are those of `gateway.domain.timeline`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple, Protocol

from prometheus_client.metrics_core import Metric

from gateway.domain import Tier
from gateway.domain.timeline import Timeline
from gateway.telemetry import families
from gateway.telemetry.series import OTHER, Counts, Histogram, Histograms
from gateway.telemetry.tenant_metrics import TenantMetrics
from scheduler.facts import WaitCause

TTFT_BOUNDS: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0),
)
# The conventions begin at 0.01; small models draw faster.
TPOT_BOUNDS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5),
)
DURATION_BOUNDS: Final = tuple(0.01 * 2**n for n in range(14))
TOKEN_BOUNDS: Final = tuple(4.0**n for n in range(14))
HTTP_BOUNDS: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)

_OPERATIONS: Final = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
_METHODS: Final = frozenset({"GET", "POST", "DELETE"})
CLASSES: Final = frozenset({*(tier.value for tier in Tier), "batch"})
_BATCH: Final = "batch"
# The first of each model.
_MOST_GEN_AI: Final = 8
# Of each status and of each class and outcome, more than there are routes, or codes and limits:
# nobody's 401s take the place of our 503s, and these are told apart whoever asked for what before.
_MOST_HTTP, _MOST_DECISIONS = 256, 128
# Asked for every few seconds, and of no interest unless they fail.
_PROBES: Final = frozenset({"/livez", "/readyz", "/startupz", "/health", "/ping"})
_MAX_CLASSES: Final = len(CLASSES) + 1
# Of a finish that its time to the first token or between two was promised for.
_MET: Final = ("false", "true")


class Follows(Protocol):
    """Be told of each request as it ends, and show what it has counted."""

    def tell(self, timeline: Timeline) -> None: ...

    def collect(self) -> Iterator[Metric]: ...


class _Times(NamedTuple):
    """Hold where requests of one kind are counted."""

    ttft: Histogram
    tpot: Histogram
    duration: Histogram
    queue: Histogram
    gap: Histogram
    input: Histogram
    output: Histogram


class RequestMetrics:
    """Count requests; tell it of each as it ends, on the event loop's thread.

    `models` are those that are served, `second` is told of those that were answered besides.
    """

    def __init__(
        self,
        models: Iterable[str],
        tenants: TenantMetrics,
        *,
        second: Follows | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._models = frozenset(models)
        self._tenants = tenants
        self._second = second
        self._wall_clock = wall_clock
        num_models = max(1, len(self._models))
        most = _MOST_GEN_AI * num_models
        self._ttft = Histograms(families.TTFT, TTFT_BOUNDS, most=most)
        self._tpot = Histograms(families.TPOT, TPOT_BOUNDS, most=most)
        self._duration = Histograms(families.DURATION, DURATION_BOUNDS, most=most)
        self._usage = Histograms(families.TOKEN_USAGE, TOKEN_BOUNDS, most=2 * (num_models + 1))
        self._http = Histograms(
            families.HTTP_DURATION,
            HTTP_BOUNDS,
            most=_MOST_HTTP,
            folds=("http_request_method", "http_route"),
        )
        self._queue = Histograms(families.QUEUE_TIME, TTFT_BOUNDS, most=_MAX_CLASSES)
        self._gap = Histograms(families.MAX_GAP, TTFT_BOUNDS, most=_MAX_CLASSES)
        self._requests = Counts(families.REQUESTS, most=5 * _MAX_CLASSES)
        self._decisions = Counts(families.DECISIONS, most=_MOST_DECISIONS, folds=("limit",))
        self._waits = Counts(families.WAITS, most=16)
        # Zeros, so that the first of each is seen as a rise.
        for cause in WaitCause:
            self._waits.add((cause.value,), 0)
        self._slo = Counts(families.SLO_ATTAINED, most=4 * _MAX_CLASSES)
        self._events = Counts(families.EVENTS, most=1)
        self._stalls = Counts(families.STALLS, most=1)
        self._billed = Counts(families.BILLED, most=1)
        self._kinds: dict[tuple[str, str, str], _Times] = {}

    def tell(self, timeline: Timeline) -> None:
        """Count a request that has ended."""
        ended_s = timeline.ended_s
        assert ended_s is not None, "it is told of at its end"
        if timeline.route in _PROBES and timeline.status < 400:
            return
        took_s = ended_s - timeline.began_s
        kind = _BATCH if timeline.batch_id is not None else timeline.tier
        if kind not in CLASSES:
            kind = OTHER
        if timeline.status:
            self._count_http(timeline, took_s)
        outcome = timeline.outcome or ("refused" if timeline.status >= 400 else "none")
        self._requests.add((kind, outcome))
        if timeline.facts or timeline.first_token_s is not None:
            self._count_generation(timeline, kind, took_s)
            self._decisions.add((kind, "", "admitted"))
        elif timeline.limit or timeline.code:
            self._decisions.add((kind, timeline.limit or timeline.code, "refused"))
        if timeline.is_stream:
            self._events.add((), timeline.num_events)
            self._stalls.add((), timeline.stall_s)
        if timeline.tenant_id is not None:
            tokens = timeline.input_tokens + timeline.output_tokens
            if tokens or timeline.facts:
                self._tenants.count(timeline.tenant_id, timeline, outcome, ended_s)

    def _count_http(self, timeline: Timeline, took_s: float) -> None:
        method = timeline.method if timeline.method in _METHODS else "_OTHER"
        one = self._http.of(method, str(timeline.status), timeline.route or OTHER)
        one.observe(took_s)
        if timeline.is_kept:
            one.exemplify(took_s, timeline.trace_id, self._wall_clock())

    def _count_generation(self, timeline: Timeline, kind: str, took_s: float) -> None:
        """Count what the scheduler took in."""
        times = self._times_of(timeline, kind)
        times.duration.observe(took_s)
        ttft_s = tpot_s = None
        first_s, last_s = timeline.first_token_s, timeline.last_token_s
        if first_s is not None:
            ttft_s = first_s - timeline.began_s
            times.ttft.observe(ttft_s)
            # Of several answers, each has its own pace.
            later = timeline.output_tokens - timeline.num_choices
            if last_s is not None and later > 0:
                tpot_s = (last_s - first_s) * timeline.num_choices / later
                times.tpot.observe(tpot_s)
        if timeline.is_kept:
            self._exemplify(timeline, times, took_s, ttft_s, tpot_s)
        self._count_wait(timeline, times)
        if timeline.is_stream and timeline.max_gap_s > 0.0:
            times.gap.observe(timeline.max_gap_s)
        times.input.observe(timeline.input_tokens)
        times.output.observe(timeline.output_tokens)
        self._billed.add((), timeline.nano_usd * 1e-9)
        if timeline.ttft_slo_s is not None or timeline.tpot_slo_s is not None:
            self._judge(timeline, kind, ttft_s, tpot_s)
        if self._second is not None:
            self._second.tell(timeline)

    def _times_of(self, timeline: Timeline, kind: str) -> _Times:
        asked = (timeline.route, timeline.model, kind)
        times = self._kinds.get(asked)
        if times is None:
            model = timeline.model if timeline.model in self._models else OTHER
            labels = (_OPERATIONS.get(timeline.route, "chat"), model, kind)
            times = _Times(
                self._ttft.of(*labels),
                self._tpot.of(*labels),
                self._duration.of(*labels),
                self._queue.of(kind),
                self._gap.of(kind),
                self._usage.of(model, "input"),
                self._usage.of(model, "output"),
            )
            if len(self._kinds) < 64 * max(1, len(self._models)):
                self._kinds[asked] = times
        return times

    def _exemplify(
        self,
        timeline: Timeline,
        times: _Times,
        took_s: float,
        ttft_s: float | None,
        tpot_s: float | None,
    ) -> None:
        now, trace_id = self._wall_clock(), timeline.trace_id
        times.duration.exemplify(took_s, trace_id, now)
        if ttft_s is not None:
            times.ttft.exemplify(ttft_s, trace_id, now)
        if tpot_s is not None:
            times.tpot.exemplify(tpot_s, trace_id, now)

    def _count_wait(self, timeline: Timeline, times: _Times) -> None:
        if not timeline.facts:
            return
        facts = timeline.facts[0]
        until_s = facts.ended_s if facts.admitted_s is None else facts.admitted_s
        times.queue.observe(until_s - facts.queued_s)
        for cause, waited_s in facts.waits_s.items():
            self._waits.add((cause.value,), waited_s)

    def _judge(
        self, timeline: Timeline, kind: str, ttft_s: float | None, tpot_s: float | None
    ) -> None:
        """Count promises; how a request without a token ended says what became of it."""
        for slo, promised_s, took_s in (
            ("ttft", timeline.ttft_slo_s, ttft_s),
            ("tpot", timeline.tpot_slo_s, tpot_s),
        ):
            if promised_s is None or took_s is None:
                continue
            met = _MET[took_s <= promised_s]
            self._slo.add((kind, met, slo))
            if timeline.tenant_id is not None:
                self._tenants.judge(timeline.tenant_id, met)

    def collect(self) -> Iterator[Metric]:
        """Yield all that was counted, from any thread."""
        for one in (
            *(self._ttft, self._tpot, self._duration, self._usage, self._http, self._queue),
            *(self._gap, self._requests, self._decisions, self._waits, self._slo, self._events),
            *(self._stalls, self._billed),
        ):
            yield one.collect()
        yield from self._tenants.collect()
        if self._second is not None:
            yield from self._second.collect()
