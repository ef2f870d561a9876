"""The part of the composition root that batches need: their service, and what moves them on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from gateway.domain.batch import BatchBounds
from gateway.services.batches import (
    MAX_OPEN_ITEMS,
    BatchService,
    BatchUpkeep,
    Finalizer,
    Validator,
)
from gateway.services.fair_pool import FairPool
from gateway.services.inference import ModelRegistry
from gateway.services.ledger import PriceBook
from gateway.settings import Settings
from gateway.store import Store


@dataclass(frozen=True, slots=True)
class OpenBatches:
    """Hold what the API asks, and what is to be woken once items of a batch are over."""

    service: BatchService
    upkeep: BatchUpkeep


async def open_batches(
    stack: AsyncExitStack,
    settings: Settings,
    store: Store,
    models: ModelRegistry,
    prices: PriceBook,
    pool: FairPool,
    *,
    on_started: Callable[[], None] = lambda: None,
) -> OpenBatches:
    """Look after batches until `stack` is left; inputs are read on the threads of `pool`.

    `on_started` is told that there may be items to run.
    """
    bounds = BatchBounds(
        max_items=MAX_OPEN_ITEMS, max_enqueued_tokens=settings.batch_enqueued_tokens
    )
    steps, storage = store.batch_steps, store.file_storage
    upkeep = BatchUpkeep(
        steps,
        Validator(steps, storage, models, prices, pool, bounds=bounds),
        Finalizer(steps, storage),
        on_started=on_started,
    )
    await stack.enter_async_context(upkeep.running())
    return OpenBatches(BatchService(store.batches, store.files, upkeep.wake), upkeep)
