"""The part of the composition root that counts, bills and tells: quotas, ledger, thresholds."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from gateway.data_dir import SPOOL_DIR
from gateway.domain.counters import WindowUse
from gateway.domain.quota import ScopeKind
from gateway.domain.usage import UsageRow
from gateway.services.ledger import KeyedAnswers, LedgerWriter, PriceBook, Spool
from gateway.services.quotas import (
    Books,
    CounterLink,
    QuotaKeeper,
    QuotaService,
    Reconciler,
    Recovery,
    Thresholds,
    Webhook,
    WebhookDelivery,
)
from gateway.settings import Settings
from gateway.store import Store
from gateway.telemetry.metrics import Metrics

_FLUSH_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Accounting:
    """Hold what the API needs of it."""

    quotas: QuotaService
    spool: Spool
    writer: LedgerWriter
    keyed: KeyedAnswers
    metrics: Metrics
    # Told of rows that are in the ledger now.
    on_written: list[Callable[[Sequence[UsageRow]], None]]


@asynccontextmanager
async def open_accounting(
    settings: Settings, store: Store, prices: PriceBook
) -> AsyncIterator[Accounting]:
    """Begin to count. What dead processes of this data directory left is billed first."""
    metrics = Metrics()
    async with AsyncExitStack() as stack:
        spool = Spool(settings.data_dir / SPOOL_DIR)
        stack.callback(spool.close)
        thresholds = await _open_thresholds(stack, settings, store, metrics)
        # Private counters die with their gateway: nobody else can hold anything in them.
        is_private = settings.redis_url is None
        link = CounterLink(
            store.counters,
            time,
            metrics,
            build_s=settings.quota_build_s,
            first_build_s=0.0 if is_private else settings.quota_build_s,
        )
        recovery = Recovery(spool.append, link)
        keyed = KeyedAnswers(recovery.append)
        # They are nobody's any more: all rows that a new spool holds were taken over.
        for row in spool.unledgered():
            recovery.settle(row)
            keyed.found(row)

        on_written: list[Callable[[Sequence[UsageRow]], None]] = []

        def written(rows: Sequence[UsageRow]) -> None:
            keyed.written(rows)
            recovery.written(rows)
            for tell in on_written:
                tell(rows)

        writer = LedgerWriter(store.ledger, spool, on_written=written)

        async def flush() -> None:
            await writer.flush(_FLUSH_S)

        quotas = QuotaService(
            link,
            store.ledger,
            prices,
            Books(keyed.append, _noting(thresholds), thresholds.lowest_percent),
            metrics,
            flush_ledger=flush,
        )
        await stack.enter_async_context(spool.syncing())
        await stack.enter_async_context(writer.running())
        keeper = QuotaKeeper(
            quotas, store.ledger, metrics, remind=lambda: recovery.settle_again(spool.unledgered())
        )
        await stack.enter_async_context(keeper.running())
        await stack.enter_async_context(Reconciler(quotas, store.ledger, metrics).running())
        metrics.spool_depth.set_function(lambda: spool.depth)
        yield Accounting(quotas, spool, writer, keyed, metrics, on_written)


async def _open_thresholds(
    stack: AsyncExitStack, settings: Settings, store: Store, metrics: Metrics
) -> Thresholds:
    thresholds = Thresholds(
        store.quota_events,
        settings.quota_thresholds,
        is_delivered=settings.webhook_url is not None,
        on_raised=lambda event: metrics.quota_thresholds.labels(
            str(event.percent), event.metric.value
        ).inc(),
    )
    await stack.enter_async_context(thresholds.running())
    if settings.webhook_url is not None and settings.webhook_secret is not None:
        webhook = Webhook(
            settings.webhook_url,
            settings.webhook_secret.get_secret_value(),
            allow_private=settings.webhook_allow_private,
        )
        await stack.enter_async_context(WebhookDelivery(store.quota_events, webhook).running())
    return thresholds


def _noting(thresholds: Thresholds) -> Callable[[UUID, Sequence[WindowUse]], None]:
    """Return what tells thresholds of the windows that the counters list."""

    def note(tenant_id: UUID, windows: Sequence[WindowUse]) -> None:
        for window in windows:
            limit = window.limit
            assert limit.slot is not None, "only windows are listed"
            owner = tenant_id if limit.scope.kind in (ScopeKind.KEY, ScopeKind.TENANT) else None
            start_s, used, amount = limit.slot.start_s, window.used, limit.amount
            thresholds.note(limit.scope, owner, limit.metric, start_s, used, amount)

    return note
