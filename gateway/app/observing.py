"""The part of the composition root that shows what the process does: the collectors of metrics."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from dataclasses import dataclass

from gateway.app.accounting import Accounting
from gateway.services.batches.backlog import BacklogWatch
from gateway.services.inference import ModelRegistry
from gateway.settings import Settings
from gateway.store import Store
from gateway.telemetry.gpu import GpuMetrics
from gateway.telemetry.process_metrics import ProcessMetrics
from gateway.telemetry.request_metrics import RequestMetrics
from gateway.telemetry.scheduler_metrics import SchedulerMetrics
from gateway.telemetry.tenant_metrics import TenantMetrics
from gateway.telemetry.vllm_names import VllmMetrics


@dataclass(frozen=True, slots=True)
class Observed:
    """Hold what is told of requests as they end, and of the process."""

    requests: RequestMetrics
    process: ProcessMetrics


async def observing(
    stack: AsyncExitStack,
    settings: Settings,
    store: Store,
    books: Accounting,
    models: ModelRegistry,
) -> Observed:
    """Add to the metrics what is read off others, and look at it until `stack` is left."""
    services = {model.name: model.service for model in models}
    counts = {name: service.counts for name, service in services.items()}
    process = ProcessMetrics(
        time.monotonic,
        ledger_lag_s=lambda: books.writer.lag_s,
        usd_per_hour=settings.machine_usd_per_hour,
    )
    backlog = BacklogWatch(store.batch_backlog, process.note_backlog)
    await stack.enter_async_context(backlog.running())
    vllm = None
    if settings.metrics_vllm:
        vllm = VllmMetrics(
            counts,
            {model.name: model.info.block_size for model in models},
        )
    requests = RequestMetrics(
        services,
        TenantMetrics(
            {name: service.shares for name, service in services.items()},
            size=settings.metrics_tenants,
        ),
        second=vllm,
    )
    for source in (requests, SchedulerMetrics(counts), process, GpuMetrics.of_machine()):
        books.metrics.add(source)
    return Observed(requests, process)
