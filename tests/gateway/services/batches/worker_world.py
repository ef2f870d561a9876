"""A worker in a world of fakes: batches and their queue in memory, runs that tests end."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from gateway.domain import KeyRecord, Principal
from gateway.domain.batch import (
    Batch,
    BatchDraft,
    BatchState,
    ClaimedItem,
    ItemResult,
    ItemRun,
    PausedFor,
)
from gateway.domain.price import Price
from gateway.errors import GatewayError, StoredFileMissing
from gateway.services.batches.worker import BatchWorker
from gateway.services.batches.worker_gate import ByteGate
from gateway.services.batches.worker_items import ItemDesk
from gateway.services.batches.worker_payers import Payers
from gateway.services.batches.worker_ports import ItemAnswer, ItemOrder
from scheduler.state import Room

LINE = b'{"custom_id":"a","body":{"model":"m"}}'


class Time:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def time(self) -> float:
        return self.now_s


@dataclass
class Given:
    """Note an item that was given back."""

    run: ItemRun
    is_unharmed: bool
    after_s: float


class World:
    """Implement what a worker stands on; a batch has as many items as tests gave it."""

    def __init__(self, num_slots: int = 4) -> None:
        self.clock = Time()
        self.rooms = [Room(num_slots, 0, 0, 0, 0.0)]
        self.batches: dict[UUID, Batch] = {}
        self.records: dict[UUID, KeyRecord] = {}
        self.pending: defaultdict[UUID, list[tuple[int, int]]] = defaultdict(list)
        self.claims: list[ItemRun] = []
        self.given: list[Given] = []
        self.held: set[ItemRun] = set()
        self.pauses: list[tuple[UUID, PausedFor | None]] = []
        self.num_pause_calls = self.num_key_lookups = 0
        # What ends runs: a request that has not been answered, by its id.
        self.runs: dict[UUID, tuple[ItemOrder, asyncio.Future[int]]] = {}
        self.errors: list[GatewayError] = []
        self.kept: list[ItemResult] = []
        self.line = LINE
        self.num_dropped = 0
        self.served = {"m"}
        self.full: set[UUID] = set()
        self.has_input = True
        self.worker = BatchWorker(
            self,  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            ItemDesk(self, self, ByteGate()),  # type: ignore[arg-type]
            Payers(self, self, clock=self.clock),
            self,
            {"m": self},
            is_full=lambda tenant_id: tenant_id in self.full,
            serves=lambda model: model in self.served,
            clock=self.clock,
        )

    def add(self, num_items: int, *, size_bytes: int = len(LINE), **who: Any) -> Batch:
        """Have a batch wait, of a tenant of its own unless told."""
        principal = Principal(
            UUID(int=1), who.pop("tenant_id", uuid4()), "t", who.pop("weight", 1.0), uuid4(), "k"
        )
        principal = replace(principal, **who)
        self.records[principal.key_id] = KeyRecord(principal, ())
        batch = batch_of(principal, num_items)
        self.batches[batch.id] = batch
        self.pending[batch.id] = [(line, size_bytes) for line in range(1, num_items + 1)]
        return batch

    def num_running(self, batch: Batch) -> int:
        return sum(order.principal.tenant_id == batch.tenant_id for order, _ in self.runs.values())

    async def turn(self) -> None:
        """Let the worker look once, and what it began go on."""
        await self.worker.round()
        await settled()

    async def end(self, num_tokens: int = 100, *, limit: int = 1000, batch: Any = None) -> int:
        """Answer what runs; return how many that were."""
        ended = 0
        for order, answered in list(self.runs.values()):
            if ended < limit and (batch is None or order.principal.tenant_id == batch.tenant_id):
                answered.set_result(num_tokens)
                ended += 1
        await settled()
        return ended

    async def fail(self, error: GatewayError) -> None:
        """End all that runs so."""
        for _, answered in list(self.runs.values()):
            answered.set_exception(error)
        await settled()
        await self.worker._returns.flush()

    # What it stands on.

    def room(self) -> Room:
        return self.rooms[0]

    def hold(self, runs: Collection[ItemRun]) -> None:
        self.held.update(runs)

    def let_go(self, runs: Collection[ItemRun]) -> None:
        self.held.difference_update(runs)

    async def of_id(self, key_id: UUID) -> KeyRecord | None:
        self.num_key_lookups += 1
        return self.records.get(key_id)

    async def version(self, price_id: UUID) -> Price | None:
        return None

    async def open_batches(self) -> Sequence[Batch]:
        return list(self.batches.values())

    async def pause(self, paused: Mapping[UUID, str | None], why: PausedFor | None) -> None:
        self.num_pause_calls += 1
        for batch_id, because in paused.items():
            self.pauses.append((batch_id, why))
            self.batches[batch_id] = replace(
                self.batches[batch_id], paused_for=why, paused_because=because
            )

    async def claim(
        self, batch_id: UUID, worker_id: UUID, *, limit: int, lease_s: float
    ) -> Sequence[ClaimedItem]:
        batch, waiting = self.batches[batch_id], self.pending[batch_id]
        if batch.paused_for is not None:
            return []
        taken, self.pending[batch_id] = waiting[:limit], waiting[limit:]
        items = []
        for line, size_bytes in taken:
            generation = 1 + sum(_parts(run) == (batch_id, line) for run in self.claims)
            run = ItemRun(batch_id, line, generation)
            self.claims.append(run)
            items.append(ClaimedItem(run, batch.tenant_id, 0, size_bytes, generation))
        return items

    async def give_back(
        self, runs: Collection[ItemRun], *, is_unharmed: bool, after_s: float = 0.0
    ) -> Collection[ItemRun]:
        for run in sorted(runs):
            self.given.append(Given(run, is_unharmed, after_s))
            self.pending[run.batch_id].append((run.line, len(LINE)))
        return runs

    async def take_back(self, limit: int) -> int:
        return 0

    def read(self, file_id: UUID, **part: int) -> AsyncGenerator[bytes, None]:
        async def chunks() -> AsyncGenerator[bytes, None]:
            if not self.has_input:
                raise StoredFileMissing
            yield self.line

        return chunks()

    async def run(self, order: ItemOrder) -> ItemAnswer:
        if self.errors:
            raise self.errors[0]
        order.begun()
        answered: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.runs[order.request_id] = order, answered
        try:
            num_tokens = await answered
        finally:
            del self.runs[order.request_id]
        return ItemAnswer(200, b"{}", False, num_tokens, self.kept.append, self._drop)

    def refuse(self, order: ItemOrder, error: GatewayError) -> ItemAnswer:
        return ItemAnswer(400, b"{}", True, 0, self.kept.append, self._drop)

    def _drop(self) -> None:
        self.num_dropped += 1


def _parts(run: ItemRun) -> tuple[UUID, int]:
    return run.batch_id, run.line


async def settled() -> None:
    """Let everything go on that can."""
    for _ in range(20):
        await asyncio.sleep(0)


def batch_of(principal: Principal, num_items: int) -> Batch:
    now = datetime.fromtimestamp(1000, UTC)
    draft = BatchDraft(
        uuid4(), principal.tenant_id, principal.key_id, "/v1/completions", uuid4(), 86400
    )
    return Batch(
        draft=draft,
        state=BatchState.IN_PROGRESS,
        paused_for=None,
        errors=(),
        price_ids={},
        output_file_id=None,
        error_file_id=None,
        num_items=num_items,
        num_done=0,
        num_failed=0,
        num_dropped=0,
        enqueued_tokens=0,
        input_tokens=0,
        cached_tokens=0,
        output_tokens=0,
        created_at=now,
        expires_at=now + timedelta(days=1),
        in_progress_at=now,
        finalizing_at=None,
        cancelling_at=None,
        ended_at=None,
    )
