"""The background work of the counters: renew, sweep, come back.

Every second it renews the leases that are due, and tells what their requests have used so far:
that is what is billed if this process dies. A lease that the counters no longer know is held
again, unless it was reaped for being late: then its request ends where its grant does. Every few
seconds it reaps other processes' abandoned leases, and bills what those had been told of: a task of
its own, as a ledger that hangs must not keep leases from being renewed.

Under a hard limit nothing is reaped on the counters' word alone. Its process may have billed it and
be cut off from the counters, or run it still: such a process vouches for what it runs, with a row
in the ledger for all that it was granted, which the bill replaces. Whoever reaps looks there first,
and where the ledger does not answer what is held stays held.

After the counters have forgotten everything, all that is held here is held again; until every
process has had the time to do so, hard limits let nothing through (`build_s` of the link).
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from typing import Final, Protocol
from uuid import UUID

from gateway.background import Background
from gateway.domain.counters import Billed, Gone, Keep, Kept, Orphan, Reap, Reaped, Sweep, Swept
from gateway.domain.limits import BASE_S, Told
from gateway.domain.usage import Outcome, UsageRow
from gateway.errors import CountersUnavailable
from gateway.services.quotas.bill import Meta, bill
from gateway.services.quotas.lease import LEASE_US, RequestLease, used_amounts
from gateway.services.quotas.service import QuotaService
from gateway.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

TICK_S: Final = 1.0
_RENEW_S: Final = 5.0
SWEEP_S: Final = 3.0
# As many as one run of the script should deal with: everybody waits for it.
_BATCH: Final = 50
# The counters' time is whole microseconds, the ledger's too; by any rounding.
_ROUNDED_S: Final = 1.0


class BillsUsage(Protocol):
    """Write rows into the ledger, where one that is there already stays; say what those say that
    were begun since then."""

    async def insert(self, rows: Sequence[UsageRow]) -> int: ...
    async def booked(self, ids: Collection[UUID], since_s: float) -> Mapping[UUID, Told]: ...


class QuotaKeeper:
    """Keep this process's leases alive, and bill those of processes that died."""

    def __init__(
        self,
        quotas: QuotaService,
        ledger: BillsUsage,
        metrics: Metrics,
        *,
        remind: Callable[[], None] = lambda: None,
        tick_s: float = TICK_S,
        sweep_s: float = SWEEP_S,
    ) -> None:
        """Keep them. `remind` posts what ended and may not be in the ledger yet, once more."""
        self._quotas = quotas
        self._tick_s = tick_s
        self._sweep_s = sweep_s
        self._link = quotas.link
        self._ledger = ledger
        self._metrics = metrics
        self._remind = remind
        self._name = uuid.uuid4().hex[:12]
        # The life of the counters in which all that is held here is held.
        self._epoch = ""
        self._must_return = False
        self._link.on_epoch = self._forgotten

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Work in the background; on leaving, send what is still posted.

        Who finds the counters empty waits until they are built: it would refuse what it could not
        check meanwhile.
        """
        ticking = self._repeating(self.tick, self._tick_s)
        await ticking.round()
        await asyncio.sleep(self._link.built_in_s())
        try:
            sweeping = self._repeating(self.sweep, self._sweep_s)
            async with ticking, sweeping, self._repeating(self.vouch, self._tick_s):
                yield
        finally:
            try:
                await self._link.flush()
            except CountersUnavailable as exc:
                logger.warning("counters not told of %d ends: %s", self._link.num_posted, exc)
            await self._link.close()

    async def tick(self) -> None:
        """Find the counters again, and renew what is due. Raises: `CountersUnavailable`."""
        if self._link.is_open:
            await self._link.probe()
            self._quotas.local.forget()
        await self.come_back()
        await self._link.flush()
        await self.renew()

    async def renew(self) -> None:
        """Renew the leases that were not for a while."""
        now_s = self._link.now_s()
        due = [
            lease
            for lease in self._quotas.live
            if not (lease.is_local or lease.is_lost) and now_s - lease.told_s >= _RENEW_S
        ]
        for first in range(0, max(len(due), 1), _BATCH):
            batch = due[first : first + _BATCH]
            told = [lease.told() for lease in batch]
            ids = [lease.terms.request_id.hex for lease in batch]
            listed = list(zip(ids, told, strict=True))
            [answer] = await self._link.ask(Keep(self._name, LEASE_US, listed, self._epoch))
            assert isinstance(answer, Kept)
            self._link.num_gateways = max(answer.num_gateways, 1)
            self._quotas.local.num_gateways = self._link.num_gateways
            for lease, id_, use in zip(batch, ids, told, strict=True):
                if id_ not in answer.gone:
                    lease.was_told(use, now_s)
            await self._find_again(batch, answer.gone)

    async def sweep(self) -> None:
        """Bill what dead processes left. Raises: `CountersUnavailable`, `StoreUnavailable`."""
        [answer] = await self._link.ask(Sweep(_BATCH))
        assert isinstance(answer, Swept)
        self._metrics.quota_leases.set(answer.num_leases)
        self._metrics.quota_reaped.inc(answer.num_reaped)
        if answer.overdue:
            await self._reap(answer.overdue)
        if not answer.orphans:
            return
        rows = [_lost_row(orphan) for orphan in answer.orphans]
        await self._ledger.insert(rows)
        await self._link.ask(Billed([orphan.request_id for orphan in answer.orphans]))
        logger.warning("billed %d requests of processes that died", len(rows))

    async def _reap(self, overdue: Sequence[tuple[str, int]]) -> None:
        """End what nobody renewed, at what the ledger has of it."""
        ids = [uuid.UUID(hex=id_) for id_, _ in overdue]
        since_s = min(at_us for _, at_us in overdue) / 1_000_000 + BASE_S
        booked = await self._ledger.booked(ids, since_s - _ROUNDED_S)
        used = [used_amounts(booked[id_]) if id_ in booked else None for id_ in ids]
        listed = [(id_.hex, amounts) for id_, amounts in zip(ids, used, strict=True)]
        [reaped] = await self._link.ask(Reap(listed))
        assert isinstance(reaped, Reaped)
        self._metrics.quota_reaped.inc(reaped.num_requests)

    async def vouch(self) -> None:
        """Answer in the ledger for what runs under a hard limit and cannot be renewed.

        Raises: `StoreUnavailable`: then it is billed at what the counters were told.
        """
        unheard = [lease for lease in self._quotas.live if lease.wants_vouching]
        for first in range(0, len(unheard), _BATCH):
            batch = unheard[first : first + _BATCH]
            rows = [lease.voucher() for lease in batch]
            await self._ledger.insert(rows)
            for lease, row in zip(batch, rows, strict=True):
                lease.was_vouched(row)

    async def come_back(self) -> None:
        """Hold again all that is held here, if the counters have forgotten it."""
        epoch = self._link.epoch
        while self._must_return:
            self._must_return, epoch = False, self._link.epoch
            try:
                await self._hold_all_again()
            except BaseException:
                self._must_return = True
                raise
        self._epoch = epoch

    async def _hold_all_again(self) -> None:
        held = [lease for lease in self._quotas.live if not (lease.is_local or lease.is_lost)]
        logger.warning("the counters begin anew: %d requests are held again", len(held))
        for first in range(0, len(held), _BATCH):
            await self._hold_again(held[first : first + _BATCH])
        # Afterwards: what ended meanwhile is among it.
        self._remind()

    async def _hold_again(self, leases: Sequence[RequestLease]) -> None:
        """Hold what is held here; where others have got it since, it ends."""
        running = [lease for lease in leases if not lease.is_settled]
        answers = await self._link.ask(*(one.again() for one in running)) if running else ()
        for lease, answer in zip(running, answers, strict=True):
            if isinstance(answer, Gone):
                id_ = lease.terms.request_id.hex
                logger.warning("request %s came back too late to hold what it held: it ends", id_)
                lease.lose_forgotten()

    async def _find_again(self, batch: Sequence[RequestLease], gone: Mapping[str, bool]) -> None:
        """Deal with leases that the counters no longer hold."""
        by_id = {lease.terms.request_id.hex: lease for lease in batch}
        for id_, was_reaped in gone.items():
            lease = by_id[id_]
            if lease.is_settled:
                continue
            if was_reaped:
                logger.warning("request %s was late to renew its lease: it ends", id_)
                lease.lose()
            else:
                await self._hold_again([lease])
                lease.was_told(Told(), self._link.now_s())

    def _forgotten(self) -> None:
        self._must_return = True

    def _repeating(self, work: Callable[[], Awaitable[None]], interval_s: float) -> Background:
        return Background("quota upkeep", work, interval_s=interval_s, level=logging.DEBUG)


def _lost_row(orphan: Orphan) -> UsageRow:
    """Return the bill of a request whose process died."""
    id_, meta = uuid.UUID(orphan.request_id), Meta.unpack(orphan.meta)
    return bill(id_, orphan.at_us, meta, orphan.told, Outcome.LOST)
