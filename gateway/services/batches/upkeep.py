"""Moving batches on: whatever waits to be validated, dropped or finalised, by any gateway.

`AT_ONCE` loops validate and as many finalise, each a batch after the other, of a tenant that no
other works for (`BatchSteps`): what one tenant has queued keeps one of them, and no other tenant
waits for it. `wake` has all look at once; besides, one question every few seconds finds out what
would be done by any of them, and wakes those alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final
from uuid import UUID

from gateway.background import Background
from gateway.domain.batch import Batch, BatchStep
from gateway.errors import StorageUnavailable, StoreUnavailable
from gateway.ports import BatchSteps
from gateway.services.batches.finalizer import Finalizer
from gateway.services.batches.hold import LEASE_S
from gateway.services.batches.validation import LeftToOthers, Validator

logger = logging.getLogger(__name__)

AT_ONCE: Final = 3
POLL_S: Final = 2.0
RETRY_S: Final = 10.0
_OUTAGES: Final = (StoreUnavailable, StorageUnavailable)


class BatchUpkeep:
    """Validate, drop and finalise; enter `running` to go on doing so."""

    def __init__(
        self,
        steps: BatchSteps,
        validator: Validator,
        finalizer: Finalizer,
        *,
        poll_s: float = POLL_S,
        on_started: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_started` is told that there may be items to run."""
        self._steps = steps
        self._validator = validator
        self._finalizer = finalizer
        self._poll_s = poll_s
        self._on_started = on_started
        self._clock = clock
        # What others may validate, and until when they alone are to try.
        self._left: dict[UUID, float] = {}
        self._wakes: dict[BatchStep, list[asyncio.Event]] = {step: [] for step in BatchStep}

    def wake(self) -> None:
        """Look now: a batch was made or cancelled, or items of one are over."""
        self._wake(BatchStep)

    async def look(self) -> None:
        """Wake whatever has something to do. Raises: `StoreUnavailable`."""
        self._wake(await self._steps.due())

    async def validate(self) -> None:
        """Validate one batch after the other while any waits for it. Raises: `StoreUnavailable`."""
        while batches := await self._steps.to_validate(1, lease_s=LEASE_S, left=self._left_now()):
            await self._tried(self._validator.validate, batches[0])
            self._on_started()

    async def drop(self) -> None:
        """Drop what is too late or cancelled. Raises: `StoreUnavailable`."""
        while await self._steps.drop():
            # What that has ended may be finalised.
            self.wake()

    async def finalize(self) -> None:
        """Finalise one batch after the other while any is over. Raises: `StoreUnavailable`."""
        while batches := await self._steps.to_finalize(1, lease_s=LEASE_S):
            await self._tried(self._finalizer.finalize, batches[0])

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Look after batches while the block runs."""
        loops = [
            (BatchStep.VALIDATE, "validating batches", self.validate, AT_ONCE),
            (BatchStep.DROP, "dropping requests of batches", self.drop, 1),
            (BatchStep.FINALIZE, "finalising batches", self.finalize, AT_ONCE),
        ]
        async with AsyncExitStack() as stack:
            for step, name, work, number in loops:
                for _ in range(number):
                    wake = asyncio.Event()
                    self._wakes[step].append(wake)
                    loop = Background(name, work, interval_s=None, wake=wake)
                    await stack.enter_async_context(loop)
            look = Background(
                "looking for batches", self.look, interval_s=self._poll_s, at_once=True
            )
            await stack.enter_async_context(look)
            yield

    def _wake(self, steps: Iterable[BatchStep]) -> None:
        for step in steps:
            for wake in self._wakes[step]:
                wake.set()

    async def _tried(self, do: Callable[[Batch], Awaitable[None]], batch: Batch) -> None:
        """Do it; what fails is tried again in a while, and holds up no other tenant."""
        retry_s = RETRY_S
        try:
            await do(batch)
            return
        except LeftToOthers as exc:
            logger.warning("batch %s left to other processes: %s", batch.id, exc)
            self._left[batch.id] = self._clock() + RETRY_S
            retry_s = 0.0
        except _OUTAGES as exc:
            logger.warning("batch %s put off: %s", batch.id, exc)
        except Exception:
            logger.exception("batch %s failed to move on from %s", batch.id, batch.state)
        with contextlib.suppress(StoreUnavailable):
            await self._steps.hold(batch.id, lease_s=retry_s)

    def _left_now(self) -> Collection[UUID]:
        """Return what is left to others for now."""
        now_s = self._clock()
        self._left = {batch_id: at for batch_id, at in self._left.items() if at > now_s}
        return list(self._left)
