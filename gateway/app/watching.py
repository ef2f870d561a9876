"""The part of the composition root that follows requests once they are over."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from dataclasses import dataclass

from gateway.api.trace_heads import TraceHeads
from gateway.domain.timeline import Timeline
from gateway.services.requests import (
    EndedRequests,
    RecentRequests,
    RecordBounds,
    RequestRecorder,
    Sampler,
    explain,
)
from gateway.settings import Settings
from gateway.store import Store
from gateway.telemetry.logs import takes_requests
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.otlp import open_traces, sends_traces
from gateway.telemetry.request_log import RequestLog
from gateway.telemetry.trace_export import TraceExport


@dataclass(frozen=True, slots=True)
class Watching:
    """Hold who is told of requests; `heads` and `traces` are None where no traces are sent."""

    ended: EndedRequests
    heads: TraceHeads | None
    traces: TraceExport | None
    log: RequestLog | None


async def open_watching(
    stack: AsyncExitStack,
    settings: Settings,
    store: Store,
    recent: RecentRequests,
    version: str,
    metrics: Metrics,
) -> Watching:
    """Have those who listen told of each request that ends, until `stack` is left.

    Who decides what is kept comes first.
    """
    ended, heads = EndedRequests(), None
    ended.add(Sampler(share=settings.trace_share).decide)
    bounds = RecordBounds(per_minute=settings.request_records_per_minute)
    recorder = RequestRecorder(
        store.request_records,
        bounds=bounds,
        on_dropped=lambda why, number: metrics.records_dropped.labels(why.value).inc(number),
    )
    await stack.enter_async_context(recorder.running())
    ended.add(recorder.tell)
    ended.add(recent.tell)
    traces = await _traces(stack, version)
    if traces is not None:
        ended.add(traces.add)
        heads = TraceHeads(settings.trace_share, settings.trace_trusted_tenants)
    else:
        ended.add(_forget_content)
    log = _log(stack, settings, has_traces=traces is not None)
    if log is not None:
        ended.add(log.add)
    # Last of all is told what still waits.
    stack.callback(ended.flush)
    return Watching(ended, heads, traces, log)


async def _traces(stack: AsyncExitStack, version: str) -> TraceExport | None:
    if not sends_traces(os.environ):
        return None
    traces = await asyncio.to_thread(open_traces, version, os.environ)
    stack.push_async_callback(asyncio.to_thread, traces.close)
    return traces


def _forget_content(timeline: Timeline) -> None:
    timeline.content = None


def _log(stack: AsyncExitStack, settings: Settings, *, has_traces: bool) -> RequestLog | None:
    if not settings.log_requests or not takes_requests():
        return None
    log = RequestLog(settings.log_format, cause=_cause, has_traces=has_traces)
    log.start()
    stack.push_async_callback(asyncio.to_thread, log.close)
    return log


def _cause(timeline: Timeline) -> str:
    # To look for it takes as long as the rest of a line; who is well needs no reason.
    return (explain(timeline).cause or "") if timeline.is_sampled else ""
