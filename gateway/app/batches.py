"""The part of the composition root that batches need: their services, and what moves them on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from uuid import UUID

from admin_ui.batch_desk import BatchDesk
from gateway.domain.batch import BatchBounds
from gateway.services.auth.chosen_keys import ChosenKeys
from gateway.services.batches import (
    MAX_OPEN_ITEMS,
    BatchService,
    BatchUpkeep,
    FailedLines,
    Finalizer,
    Validator,
)
from gateway.services.fair_pool import FairPool
from gateway.services.files import FileService, FileUpkeep
from gateway.services.health import OverloadWatch
from gateway.services.inference import ModelRegistry
from gateway.services.ledger import PriceBook
from gateway.services.loop_share import LoopShare
from gateway.services.served_names import ServedNames
from gateway.settings import Settings
from gateway.store import Store


@dataclass(frozen=True, slots=True)
class OpenBatches:
    """Hold what the API and the pages ask: one for both, as places and bounds are a tenant's."""

    service: BatchService
    files: FileService
    failed_lines: FailedLines

    def desk(self, store: Store, overload: OverloadWatch, loop_share: LoopShare) -> BatchDesk:
        """Build what takes batches in by forms."""
        keys = ChosenKeys(store.keys)
        return BatchDesk(self.files, self.service, self.failed_lines, keys, overload, loop_share)


async def open_batches(
    stack: AsyncExitStack,
    settings: Settings,
    store: Store,
    models: ModelRegistry,
    prices: PriceBook,
    pool: FairPool,
    *,
    owner_of: Callable[[UUID], UUID] | None = None,
    on_started: Callable[[], None] = lambda: None,
) -> OpenBatches:
    """Look after batches and files until `stack` is left; `pool` has the threads that read inputs.

    `owner_of` names a tenant's organisation, and `on_started` is told that there may be items to
    run.
    """
    bounds = BatchBounds(
        max_items=MAX_OPEN_ITEMS, max_enqueued_tokens=settings.batch_enqueued_tokens
    )
    steps, storage = store.batch_steps, store.file_storage
    names = ServedNames(
        (name for model in models for name in (model.name, *model.aliases)), store.replica_rates
    )
    await stack.enter_async_context(names.running())
    upkeep = BatchUpkeep(
        steps,
        Validator(
            steps,
            storage,
            models,
            prices,
            pool,
            bounds=bounds,
            may_be_elsewhere=names.may_be_elsewhere,
        ),
        Finalizer(steps, storage),
        on_started=on_started,
    )
    await stack.enter_async_context(FileUpkeep(store.files, storage).running())
    await stack.enter_async_context(upkeep.running())
    max_stored_bytes = settings.tenant_storage_mib << 20
    files = FileService(store.files, storage, max_stored_bytes=max_stored_bytes, owner_of=owner_of)
    service = BatchService(store.batches, store.files, upkeep.wake)
    return OpenBatches(service, files, FailedLines(files, pool))
