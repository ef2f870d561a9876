"""The worker: claims items of batches when the engine has room, runs them, and gives back the rest.

    claim     of each model at most twice as many as there are slots that other work leaves, none
              while that work waits or the memory is nearly full; tenants in turn
              (`worker_turns`), within a tenant what ends first, within a batch by its places
    hold      each claim is a lease that another thread renews; a run that has lost it is ended
    end       a result goes to the journal; its lease is held until it is in the database
    give back what met a budget, a dead key or a busy server, and all that runs when the process
              drains; nothing of that counts against the item

Each process is a worker and knows nothing of the others: what they share is the queue. All of this
is on the event loop but the renewals.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final
from uuid import UUID, uuid4

from gateway.background import JITTER, Background
from gateway.domain import Principal
from gateway.domain.batch import Batch, ClaimedItem, ItemRun, PausedFor
from gateway.domain.usage import ItemRow, UsageRow
from gateway.errors import StoreUnavailable
from gateway.ports import BatchQueue, BatchStore, Clock
from gateway.services.batches.worker_fates import backoff_s
from gateway.services.batches.worker_items import Done, GivenUp, ItemDesk
from gateway.services.batches.worker_models import Lacking
from gateway.services.batches.worker_pauses import Pauses
from gateway.services.batches.worker_payers import Payer, Payers
from gateway.services.batches.worker_places import Places
from gateway.services.batches.worker_ports import HasRoom, HoldsLeases
from gateway.services.batches.worker_rests import Rests
from gateway.services.batches.worker_returns import Returns
from gateway.services.batches.worker_turns import Turns, item_cost

logger = logging.getLogger(__name__)

LEASE_S: Final = 30.0
# How often to look for work that nobody told of; and whether there is room, while work waits.
POLL_S: Final = 5.0
_TICK_S: Final = 0.25
_TRY_S: Final = 1.0
# How much longer than looking took nothing is looked at again, whoever asks for it.
_LOOK_REST_RATIO: Final = 4.0
_STORAGE_FULL: Final = (
    "The files of this tenant, with the answers of its batches, take up all that it may store. "
    "Delete files, cancel a batch for the answers that it has, or have the limit raised."
)
_SWEPT: Final = 500
# Of one batch at a time: what is claimed and then not run is in the way of others.
_MAX_CLAIM: Final = 256


@dataclass(slots=True)
class _Running:
    batch: Batch
    principal: Principal
    item: ClaimedItem
    charged: float
    task: asyncio.Task[Done | GivenUp]
    is_lost: bool = False


class BatchWorker:
    """Run items while `running` is entered; see the module."""

    def __init__(
        self,
        batches: BatchStore,
        queue: BatchQueue,
        desk: ItemDesk,
        payers: Payers,
        leases: HoldsLeases,
        engines: Mapping[str, HasRoom],
        *,
        is_pressed: Callable[[str], bool] = lambda model: False,
        is_full: Callable[[UUID], bool] = lambda tenant_id: False,
        serves: Callable[[str], bool] = lambda model: True,
        on_expired: Callable[[int], None] = lambda number: None,
        clock: Clock = time,
        poll_s: float = POLL_S,
        lease_s: float = LEASE_S,
    ) -> None:
        """Make it. `engines` are by the names of their models, aliases too. While a model
        `is_pressed` nothing is claimed for it, and never of a batch whose models it does not have
        all of: `serves` tells of a model by its own name. Nothing is claimed for a tenant whose
        storage `is_full`. `on_expired` is told how many items were taken back from workers that
        are gone.
        """
        self.worker_id = uuid4()
        self._batches = batches
        self._queue = queue
        self._desk = desk
        self._payers = payers
        self._leases = leases
        self._engines = engines
        self._is_pressed = is_pressed
        self._is_full = is_full
        self._clock = clock
        self._poll_s = poll_s
        self._lease_s = lease_s
        self._on_expired = on_expired
        self._turns = Turns()
        self._pauses = Pauses(batches)
        self._lacking = Lacking(serves)
        self._returns = Returns(queue, leases)
        self._running: dict[ItemRun, _Running] = {}
        self._journaled: set[ItemRun] = set()
        self._rests = Rests()
        # By tenant, what ends first before the rest.
        self._open: Mapping[UUID, Sequence[Batch]] = {}
        self._looked_s = self._look_from_s = float("-inf")
        self._claims = asyncio.Lock()
        self._is_draining = False
        self._wake = asyncio.Event()

    @property
    def num_claimed(self) -> int:
        """Count what runs or is about to."""
        return len(self._running)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Work in the background; on leaving, give everything back."""
        async with AsyncExitStack() as stack:
            claiming = Background(
                "running batches", self.round, interval_s=_TICK_S, wake=self._wake
            )
            sweeping = Background(
                "taking items back", self.sweep, interval_s=self._poll_s, jitter=JITTER
            )
            for background in (claiming, sweeping, self._returns.running()):
                await stack.enter_async_context(background)
            try:
                yield
            finally:
                await self.drain()

    def woken(self) -> None:
        """Look for batches soon: there is a new one."""
        self._looked_s = float("-inf")
        self._wake.set()

    async def sweep(self) -> None:
        """Put back what workers held that are gone. Raises: `StoreUnavailable`."""
        taken = _SWEPT
        while not self._is_draining and taken == _SWEPT:
            taken = await self._queue.take_back(_SWEPT)
            self._on_expired(taken)

    async def round(self) -> None:
        """Claim what there is room for. Raises: `StoreUnavailable`."""
        async with self._claims:
            now = self._clock.monotonic()
            if self._is_draining:
                return
            if now - self._looked_s >= self._poll_s and now >= self._look_from_s:
                await self._look(now)
            await self._pauses.say()
            if not self._open:
                return
            claimed = [one.batch.models for one in self._running.values()]
            places = Places(self._engines, claimed, is_pressed=self._is_pressed)
            if places.total:
                await self._claim(places, now)

    async def drain(self) -> None:
        """Begin nothing more, end what runs, and give it back unharmed; for good."""
        self._is_draining = True
        # Not in the middle of a claim: nobody would know of what it got.
        async with self._claims:
            running = list(self._running.values())
        for one in running:
            one.task.cancel()
        await asyncio.gather(*(one.task for one in running), return_exceptions=True)
        try:
            await self._returns.flush()
        except StoreUnavailable as exc:
            logger.warning("items are not given back, their leases will pass: %s", exc)

    def lost(self, runs: Iterable[ItemRun]) -> None:
        """End runs that are not their items' any longer."""
        for run in runs:
            self._journaled.discard(run)
            one = self._running.get(run)
            if one is not None:
                logger.warning("%s was taken back: its run ends", run)
                one.is_lost = True
                one.task.cancel()

    def written(self, rows: Sequence[UsageRow]) -> None:
        """Learn which results are in the database: their leases are over."""
        runs = {row.item.run for row in rows if isinstance(row, ItemRow)} & self._journaled
        if runs:
            self._journaled -= runs
            self._leases.let_go(runs)

    async def _look(self, now: float) -> None:
        """Find out which batches have something to run."""
        self._looked_s = now
        mine, stuck = self._lacking.split(await self._batches.open_batches(), now)
        full = [batch for batch in mine if self._is_full(batch.tenant_id)]
        with_room = [batch for batch in mine if not self._is_full(batch.tenant_id)]
        running = await self._pauses.look(with_room, now)
        for batch in full:
            if batch.paused_for is None:
                self._pauses.pause(batch.id, PausedFor.BUDGET, now, because=_STORAGE_FULL)
        for batch_id in stuck:
            self._pauses.pause(batch_id, PausedFor.MODEL_NOT_FOUND, now)
        self._rests.forget({batch.id for batch in running}, now)
        by_tenant: dict[UUID, list[Batch]] = {}
        for batch in running:
            by_tenant.setdefault(batch.tenant_id, []).append(batch)
        for found in by_tenant.values():
            # Thousands may be open: in one go they would hold up whoever else is here.
            await asyncio.sleep(0)
            found.sort(key=lambda batch: (batch.expires_at, batch.id.int))
        self._open = by_tenant
        self._look_from_s = now + _LOOK_REST_RATIO * (self._clock.monotonic() - now)

    async def _claim(self, places: Places, now: float) -> None:
        """Claim items of the tenants whose turn it is, and begin them."""
        waiting: dict[UUID, Principal] = {}
        for tenant_id, batches in self._open.items():
            payer = await self._first_payer(batches, places, now)
            if payer is not None:
                waiting[tenant_id] = payer.principal
        self._turns.forget(waiting)
        for tenant_id, num in self._turns.take(waiting, places.total).items():
            charged, num_left = self._turns.expected(tenant_id), num
            for batch in self._open[tenant_id]:
                limit = min(num_left, self._places_of(batch, places, now))
                payer = await self._payer_of(batch, now) if limit else None
                if payer is not None:
                    num = await self._claim_of(batch, payer, limit, charged, now)
                    places.take(batch.models, num)
                    num_left -= num
                if not num_left:
                    break
            self._turns.correct(waiting[tenant_id], -charged * num_left)

    async def _first_payer(
        self, batches: Iterable[Batch], places: Places, now: float
    ) -> Payer | None:
        """Return who pays for the first of a tenant's batches that may have something to run."""
        for batch in batches:
            if self._places_of(batch, places, now):
                payer = await self._payer_of(batch, now)
                if payer is not None:
                    return payer
        return None

    def _places_of(self, batch: Batch, places: Places, now: float) -> int:
        """Say how many items of a batch there is room for, if it may have any now."""
        if self._rests.is_resting(batch.id, now) or self._pauses.is_paused(batch.id):
            return 0
        return places.of(batch.models)

    async def _payer_of(self, batch: Batch, now: float) -> Payer | None:
        """Return who pays for a batch; one whose key is no longer good for that is paused."""
        payer = await self._payers.of(batch)
        if payer is None:
            self._pauses.pause(batch.id, PausedFor.KEY_REVOKED, now)
        return payer

    async def _claim_of(
        self, batch: Batch, payer: Payer, num_places: int, charged: float, now: float
    ) -> int:
        """Claim items of one batch and begin them; return how many there were."""
        limit = self._pauses.most(batch.id, min(num_places, _MAX_CLAIM))
        items = await self._queue.claim(
            batch.id, self.worker_id, limit=limit, lease_s=self._lease_s
        )
        self._leases.hold([item.run for item in items])
        for item in items:
            self._begin(batch, payer, item, charged)
        if len(items) < limit:
            self._rests.rest(batch.id, now + self._poll_s)
        elif self._pauses.is_trying(batch.id):
            # It shows soon how that went.
            self._rests.rest(batch.id, now + _TRY_S)
        return len(items)

    def _begin(self, batch: Batch, payer: Payer, item: ClaimedItem, charged: float) -> None:
        running = self._desk.run(batch, payer, item, lambda: self._pauses.begun(batch.id))
        task = asyncio.create_task(running)
        one = self._running[item.run] = _Running(batch, payer.principal, item, charged, task)
        # No part of the task: one that is cancelled before it has begun runs none of its own code.
        task.add_done_callback(lambda done: self._ended(one))

    def _ended(self, one: _Running) -> None:
        """Do with an item what the end of its run says."""
        del self._running[one.item.run]
        ending = _ending_of(one)
        self._charge(one, ending)
        if isinstance(ending, Done):
            self._rests.served(one.batch.id)
            self._journaled.add(one.item.run)
        elif one.is_lost:
            self._leases.let_go([one.item.run])
        else:
            self._give_up(one, ending)
        self._wake.set()

    def _charge(self, one: _Running, ending: Done | GivenUp) -> None:
        """Charge the tenant what its item has cost, in place of what was expected."""
        num_tokens = ending.num_tokens if isinstance(ending, Done) else 0
        cost = item_cost(num_tokens, one.item.size_bytes)
        self._turns.correct(one.principal, cost - one.charged)
        if isinstance(ending, Done):
            self._turns.learn(one.item.tenant_id, cost)

    def _give_up(self, one: _Running, ending: GivenUp) -> None:
        """Put an item back; a reason that holds for its batch keeps the rest of it back too."""
        after_s, now, batch_id = ending.after_s, self._clock.monotonic(), one.batch.id
        if ending.is_busy:
            after_s = self._rests.no_room(batch_id, now, after_s)
        if ending.paused_for is not None:
            self._payers.forget(one.batch.draft.key_id)
            self._pauses.pause(batch_id, ending.paused_for, now, because=ending.because)
        self._returns.add(one.item.run, is_unharmed=ending.is_unharmed, after_s=after_s)


def _ending_of(one: _Running) -> Done | GivenUp:
    """Say how a run ended; one that was cancelled was drained, or lost its item."""
    if one.task.cancelled():
        return GivenUp(is_unharmed=True)
    fault = one.task.exception()
    if fault is None:
        return one.task.result()
    logger.error("%s failed", one.item.run, exc_info=fault)
    return GivenUp(is_unharmed=False, after_s=backoff_s(one.item.num_attempts))
