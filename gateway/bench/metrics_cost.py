"""What metrics cost with ten thousand tenants: a request, a streamed event, and a scrape.

In this process, beside nothing else: the median of rounds, in processor time. An event's cost is
all that follows requests at the socket, of which metrics are a part. How long a scrape keeps the
event loop from turning is seen by a task that does nothing but turn.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Final
from uuid import UUID

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.contract import EngineInfo
from gateway.api.request_id import RequestId
from gateway.domain import Tier
from gateway.domain.timeline import Timeline
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.request_metrics import RequestMetrics
from gateway.telemetry.scheduler_metrics import SchedulerMetrics
from gateway.telemetry.tenant_metrics import TenantMetrics
from scheduler.bench.part import Part, Row
from scheduler.bench.report import Figure, at_most
from scheduler.core import Scheduler
from scheduler.facts import RequestFacts, WaitCause
from scheduler.service import SWITCH_INTERVAL_S

_NUM_TENANTS: Final = 10_000
_ROUNDS: Final = 7
_NUM_EVENTS: Final = 20_000
_MODEL: Final = "m"
_INFO: Final = EngineInfo(
    model_type="none",
    vocab_size=100,
    max_model_len=4096,
    max_num_seqs=64,
    max_num_batched_tokens=256,
    num_blocks=64,
    block_size=64,
    eos_token_ids=frozenset(),
)


def add_metrics_cost(part: Part) -> None:
    """Measure, and add the figures."""
    metrics, requests = _metrics()
    timelines = [_timeline(number) for number in range(_NUM_TENANTS)]
    request_us = _cpu_us(lambda: _tell(requests, timelines)) / _NUM_TENANTS
    event_us = (_cpu_us(_events(followed=True)) - _cpu_us(_events(followed=False))) / _NUM_EVENTS
    scrape_ms = _cpu_us(metrics.render) / 1000
    held_ms = _held_ms(metrics)
    text, _ = metrics.render()
    num_series = sum(not line.startswith(b"#") for line in text.splitlines())
    part.figures["metrics_us_per_request"] = Figure(request_us, "µs")
    part.figures["metrics_us_per_event"] = at_most(event_us, 1.0, "µs")
    part.figures["scrape_ms"] = at_most(scrape_ms, 20.0, "ms")
    part.figures["scrape_held_loop_ms"] = at_most(held_ms, 5.0, "ms")
    part.figures["metrics_series"] = at_most(num_series, 2000, "series")
    note = f"{request_us:.1f} µs a request, {event_us:.2f} µs an event, {scrape_ms:.1f} ms a scrape"
    part.rows.append(Row("metrics", None, note=note))


def _metrics() -> tuple[Metrics, RequestMetrics]:
    metrics, scheduler = Metrics(), Scheduler(_INFO)
    requests = RequestMetrics([_MODEL], TenantMetrics({}))
    metrics.add(requests)
    metrics.add(SchedulerMetrics({_MODEL: scheduler.counts}))
    return metrics, requests


def _timeline(number: int) -> Timeline:
    timeline = Timeline(f"{number:032x}", 100.0, 0)
    timeline.method, timeline.route = "POST", "/v1/chat/completions"
    timeline.tenant_id = UUID(int=number)
    timeline.model, timeline.tier = _MODEL, list(Tier)[number % len(Tier)].value
    timeline.is_stream, timeline.status, timeline.outcome = True, 200, "completed"
    timeline.ended_s = 102.0 + number / 100
    timeline.first_token_s, timeline.last_token_s = 101.0, 101.9
    timeline.input_tokens, timeline.output_tokens, timeline.num_events = 30, 11, 13
    timeline.ttft_slo_s, timeline.tpot_slo_s, timeline.max_gap_s = 0.5, 0.1, 0.3
    # As the default share of traces has it.
    timeline.is_kept, timeline.trace_id = number % 20 == 0, number + 1
    timeline.facts = (
        RequestFacts(
            queued_s=100.1,
            num_ahead=3,
            admitted_s=100.6,
            first_token_s=101.0,
            ended_s=102.0,
            waits_s={WaitCause.SLOTS: 0.4, WaitCause.STEP: 0.1},
        ),
    )
    return timeline


def _tell(requests: RequestMetrics, timelines: Sequence[Timeline]) -> None:
    for timeline in timelines:
        requests.tell(timeline)


def _events(*, followed: bool) -> Callable[[], None]:
    """Return what sends a long stream, through what follows requests or without it."""
    part: Message = {"type": "http.response.body", "body": b"x" * 100, "more_body": True}

    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        for _ in range(_NUM_EVENTS):
            await send(part)

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        pass

    app: ASGIApp = RequestId(stream) if followed else stream

    def run() -> None:
        scope: Scope = {"type": "http", "method": "POST", "headers": [], "path": "/"}
        asyncio.run(app(scope, receive, send))  # type: ignore[arg-type]  # a coroutine function

    return run


def _cpu_us(work: Callable[[], object]) -> float:
    taken = []
    for _ in range(_ROUNDS):
        before_s = time.process_time()
        work()
        taken.append(time.process_time() - before_s)
    return 1e6 * median(taken)


def _held_ms(metrics: Metrics) -> float:
    """Say how long a loop that turns beside a scrape did not, at most: the median of scrapes."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        return 1000 * median(asyncio.run(_longest_turns_s(metrics)))
    finally:
        sys.setswitchinterval(interval_s)


async def _longest_turns_s(metrics: Metrics) -> list[float]:
    longest_s = []
    for _ in range(_ROUNDS):
        scrape = asyncio.create_task(asyncio.to_thread(metrics.render))
        longest = 0.0
        while not scrape.done():
            before_s = time.perf_counter()
            await asyncio.sleep(0)
            longest = max(longest, time.perf_counter() - before_s)
        longest_s.append(longest)
    return longest_s
