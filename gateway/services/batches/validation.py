"""Reading a batch's input and starting or failing the batch, beside everything else that runs.

The file is read in chunks; each is decoded as work of its tenant on the threads that all tenants
share, in slices of a millisecond with rests between them: a validation takes a part of a thread,
and of the interpreter, and no other tenant's request waits for more than a slice. What is waiting
is one chunk. Items are added once all lines are good, some hundreds at a time, and seen by workers
once the batch starts.

Failures: where a store or the storage is away, the batch is validated again once its lease has
passed, by whoever asks next; items that are there already are overwritten. What only this process
lacks is left to the others at once: an input that is not in its storage, as where that is not
mounted, and models that another gateway of the store serves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from itertools import islice
from typing import Final

from gateway.domain.batch import Batch, BatchBounds, LineError, NewItem
from gateway.errors import (
    EnqueuedTokensExceeded,
    ModelNotFound,
    StoredFileMissing,
)
from gateway.ports import BatchSteps, Clock, FileStorage
from gateway.services.batches.batch_input import BatchInput
from gateway.services.batches.hold import Hold
from gateway.services.batches.rests import Rests
from gateway.services.fair_pool import FairPool
from gateway.services.inference import ModelRegistry
from gateway.services.ledger import PriceBook

_SLICE_BYTES: Final = 32 << 10
_SLICE_ITEMS: Final = 500
# Beside a thread that works a sixth of the time others' first tokens take a tenth longer.
_REST_RATIO: Final = 5.0
_ADD_REST_RATIO: Final = 1.0
# An input is kept while its batch is not over, so what is gone has been lost by a storage: of all
# that ask in turn meanwhile none has it.
_GONE_AFTER_S: Final = 300.0


class LeftToOthers(Exception):
    """Say why a batch is not for this process to validate, and may be for another."""


class Validator:
    """Validate batches, with what holds for all of them."""

    def __init__(
        self,
        steps: BatchSteps,
        storage: FileStorage,
        models: ModelRegistry,
        prices: PriceBook,
        pool: FairPool,
        *,
        bounds: BatchBounds,
        may_be_elsewhere: Callable[[Collection[str]], bool] = lambda names: False,
        clock: Clock = time,
    ) -> None:
        """`may_be_elsewhere` tells of names whether one other gateway may serve all of them."""
        self._steps = steps
        self._storage = storage
        self._models = models
        self._prices = prices
        self._pool = pool
        self._bounds = bounds
        self._may_be_elsewhere = may_be_elsewhere
        self._clock = clock

    async def validate(self, batch: Batch) -> None:
        """Start a batch that was handed out, or fail it with what is wrong with its input.

        Raises: `LeftToOthers`; `StoreUnavailable`, `StorageUnavailable`: it is to be done again.
        """
        held = Hold(self._steps, batch.id, self._clock)
        try:
            asked = await self._read(batch, held)
            if asked is None:
                return
            if asked.lacking and self._may_be_elsewhere(asked.names):
                raise LeftToOthers("another gateway may serve its models")
            errors = asked.errors
            if not errors and await self._start(batch, asked, held):
                return
        except StoredFileMissing as exc:
            if self._clock.time() - batch.created_at.timestamp() < _GONE_AFTER_S:
                raise LeftToOthers(
                    f"{exc.detail}: SLUICE_FILE_STORAGE is to be the same for all processes"
                ) from exc
            errors = [LineError("file_not_found", "The input file is gone.", param="input_file_id")]
        except EnqueuedTokensExceeded as exc:
            errors = [LineError(exc.code or "token_limit_exceeded", exc.message)]
        if errors:
            await self._steps.fail(batch.id, errors)

    async def _read(self, batch: Batch, held: Hold) -> BatchInput | None:
        """Read the input; None where nobody waits for it any longer."""
        asked = BatchInput(batch.draft.endpoint, self._own_name)
        async with aclosing(self._storage.read(batch.draft.input_file_id)) as chunks:
            async for chunk in chunks:
                for first in range(0, len(chunk), _SLICE_BYTES):
                    part = chunk[first : first + _SLICE_BYTES]
                    await self._run(batch, partial(asked.feed, part))
                    if asked.is_over:
                        return asked
                if not await held.still():
                    return None
        await self._run(batch, asked.end)
        return asked

    async def _start(self, batch: Batch, asked: BatchInput, held: Hold) -> bool:
        """Add the items and have the batch run; True also where it is nobody's any longer."""
        items = asked.items()
        while part := await self._next(batch, items):
            rests = Rests(_ADD_REST_RATIO, self._clock.monotonic)
            await self._steps.add_items(batch.id, part)
            await rests.before_more()
            if not await held.still():
                return True
        prices = {model: self._prices.price(model) for model in asked.models}
        price_ids = {model: price.id for model, price in prices.items() if price is not None}
        await self._steps.start(batch.id, price_ids, models=asked.models, bounds=self._bounds)
        return True

    async def _next(self, batch: Batch, items: Iterator[NewItem]) -> Sequence[NewItem]:
        part: list[NewItem] = []

        def gather() -> None:
            part.extend(islice(items, _SLICE_ITEMS))

        await self._run(batch, gather)
        return part

    async def _run(self, batch: Batch, work: Callable[[], None]) -> None:
        await self._pool.run(batch.tenant_id, work, rest_ratio=_REST_RATIO)

    def _own_name(self, model: str) -> str | None:
        try:
            return self._models.get(model).name
        except ModelNotFound:
            return None
