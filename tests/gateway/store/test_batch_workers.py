"""Workers on a real PostgreSQL: leases in a thread of their own, and what dead or late ones leave.

A worker here is the real one over the real queue and journal; only the engine is a fake.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import text

from gateway.domain.batch import Batch, ItemResult, ItemRun
from gateway.domain.usage import ItemRow, UsageRow
from gateway.errors import GatewayError, StoreUnavailable
from gateway.services.batches.worker import BatchWorker
from gateway.services.batches.worker_gate import ByteGate
from gateway.services.batches.worker_items import ItemDesk
from gateway.services.batches.worker_payers import Payers
from gateway.services.batches.worker_ports import ItemAnswer, ItemOrder
from gateway.services.ledger import LedgerWriter, Spool
from gateway.store import Store
from gateway.store.batch_heartbeat import BatchHeartbeat
from scheduler.state import Room
from tests.gateway.store.batch_rows import alter, claimed, lines_of, running_batch, seen
from tests.gateway.usage_rows import usage_row

pytestmark = pytest.mark.anyio

LINE = b'{"custom_id":"a","body":{}}'


class OneFile:
    """Every item reads the same line."""

    async def _chunks(self) -> AsyncIterator[bytes]:
        yield LINE

    def read(self, file_id: UUID, **part: int) -> AsyncIterator[bytes]:
        return self._chunks()


class Leaseless:
    """Renew nothing, as a process that is stopped."""

    def hold(self, runs: Collection[ItemRun]) -> None: ...
    def let_go(self, runs: Collection[ItemRun]) -> None: ...


class Ledger:
    """Insert into the real one, but not while it is away."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.is_away = False
        self.num_tries = 0

    async def insert(self, rows: Sequence[UsageRow]) -> int:
        self.num_tries += 1
        if self.is_away:
            raise StoreUnavailable(detail="away")
        return await self._store.ledger.insert(rows)


class Process:
    """One worker with a journal; runs end when it `may_end`."""

    def __init__(self, store: Store, directory: Path, *, nano_usd: int = 1234) -> None:
        self.nano_usd = nano_usd
        self.may_end = asyncio.Event()
        self.num_begun = 0
        self.spool = Spool(directory)
        self.ledger = Ledger(store)
        self.writer = LedgerWriter(self.ledger, self.spool, on_written=self._written)
        self._room = Room(4, 0, 0, 0, 0.0)
        desk = ItemDesk(OneFile(), self, ByteGate())  # type: ignore[arg-type]
        payers = Payers(store.keys, store.prices)
        self.worker = BatchWorker(
            store.batches, store.batch_queue, desk, payers, Leaseless(), {"m": self}
        )

    def _written(self, rows: Sequence[UsageRow]) -> None:
        self.worker.written(rows)

    def room(self) -> Room:
        return self._room

    async def run(self, order: ItemOrder) -> ItemAnswer:
        order.begun()
        self.num_begun += 1
        await self.may_end.wait()

        def keep(result: ItemResult) -> None:
            row = usage_row(
                request_id=order.request_id,
                tenant_id=order.principal.tenant_id,
                key_id=order.principal.key_id,
                is_batch=True,
                nano_usd=self.nano_usd,
                at=datetime.now(UTC),
            )
            self.spool.append(ItemRow.of(row, result))

        return ItemAnswer(200, b"{}", False, 20, keep, lambda: None)

    def refuse(self, order: ItemOrder, error: GatewayError) -> ItemAnswer:
        raise AssertionError("nothing is refused here")

    async def begun(self, num_runs: int) -> None:
        await self.worker.round()
        await until(lambda: self.num_begun == num_runs)

    async def ended(self) -> None:
        """Let all that runs end, and have it in the journal."""
        self.may_end.set()
        await until(lambda: not self.worker.num_claimed)


async def until(is_so: object) -> None:
    async with asyncio.timeout(20):
        while not is_so():  # type: ignore[operator]
            await asyncio.sleep(0.01)


async def bills(store: Store, batch: Batch) -> list[tuple[str, int]]:
    """Return the outcomes and amounts of a tenant's rows."""
    query = text("SELECT outcome, nano_usd FROM usage_events WHERE tenant_id = :id ORDER BY 1, 2")
    async with store.database.platform() as connection:
        return [tuple(row) for row in await connection.execute(query, {"id": batch.tenant_id})]


async def lapse(store: Store, batch: Batch) -> None:
    """Have the leases of a batch's items be over."""
    await alter(
        store,
        "batch_items",
        "lease_until = CASE WHEN state = 'running' THEN now() - interval '1 s' END",
        batch,
    )


async def test_what_a_stopped_worker_says_too_late_is_dropped_bill_included(
    store: Store, tmp_path: Path
) -> None:
    """Its items are run by another, and it speaks first: that one's result and bill count."""
    batch = await running_batch(store, 4)
    stopped = Process(store, tmp_path / "1", nano_usd=1111)
    other = Process(store, tmp_path / "2")
    await stopped.begun(4)
    await lapse(store, batch)
    await other.worker.sweep()
    await other.begun(4)
    await stopped.ended()
    await other.ended()
    async with stopped.writer.running(), other.writer.running():
        assert await stopped.writer.flush(20)
        assert await other.writer.flush(20)
    assert (await seen(store, batch)).num_done == 4
    assert await lines_of(store, batch) == ([1, 2, 3, 4], [])
    assert await bills(store, batch) == [("completed", 1234)] * 4 + [("failed", 0)] * 4


async def test_a_worker_that_dies_before_its_journal_leaves_items_to_others(
    store: Store, tmp_path: Path
) -> None:
    """Killed between answer and journal, it has billed nothing; another runs the item."""
    batch = await running_batch(store, 1)
    killed, other = Process(store, tmp_path / "1"), Process(store, tmp_path / "2")
    await killed.begun(1)
    await lapse(store, batch)
    await other.worker.sweep()
    await other.begun(1)
    await other.ended()
    async with other.writer.running():
        assert await other.writer.flush(20)
    assert await lines_of(store, batch) == ([1], [])
    assert await bills(store, batch) == [("completed", 1234)]


async def test_a_worker_that_dies_after_its_journal_has_its_result_stored_once(
    store: Store, tmp_path: Path
) -> None:
    """The next process with its data directory stores it, also where that was done already."""
    batch = await running_batch(store, 3)
    killed = Process(store, tmp_path)
    await killed.begun(3)
    await killed.ended()
    rows = list(killed.spool.unledgered())
    killed.spool.close()
    # It was killed after one of them was stored, and before that was noted.
    await store.ledger.insert(rows[:1])
    following = Process(store, tmp_path)
    async with following.writer.running():
        assert await following.writer.flush(20)
    assert (await seen(store, batch)).num_done == 3
    assert await lines_of(store, batch) == ([1, 2, 3], [])
    assert await bills(store, batch) == [("completed", 1234)] * 3


async def test_results_wait_for_a_database_that_is_away(store: Store, tmp_path: Path) -> None:
    """They are in the journal meanwhile, however often it is tried, and are stored once."""
    batch = await running_batch(store, 4)
    process = Process(store, tmp_path)
    await process.begun(4)
    process.ledger.is_away = True
    async with process.writer.running():
        await process.ended()
        await until(lambda: process.ledger.num_tries >= 2)
        assert process.spool.depth == 4
        assert await lines_of(store, batch) == ([], [])
        process.ledger.is_away = False
        await until(lambda: not process.spool.depth)
    assert await lines_of(store, batch) == ([1, 2, 3, 4], [])
    assert await bills(store, batch) == [("completed", 1234)] * 4


@asynccontextmanager
async def beating(url: str) -> AsyncIterator[tuple[BatchHeartbeat, list[ItemRun], asyncio.Event]]:
    """Renew ten times a second, for two seconds; collect what is lost."""
    heartbeat = BatchHeartbeat(url, interval_s=0.1, lease_s=2.0)
    lost: list[ItemRun] = []
    woken = asyncio.Event()
    async with heartbeat.beating(lost.extend, woken.set):
        yield heartbeat, lost, woken


async def test_leases_outlive_an_event_loop_that_hangs(store: Store, database_url: str) -> None:
    """They are renewed by a thread: a process that is busy for long loses nothing."""
    batch = await running_batch(store, 2)
    items = await store.batch_queue.claim(batch.id, batch.id, limit=2, lease_s=2.0)
    async with beating(database_url) as (heartbeat, lost, _):
        heartbeat.hold([item.run for item in items])
        time.sleep(3.0)  # noqa: ASYNC251
        assert await store.batch_queue.take_back(9) == 0
        assert lost == []


async def test_a_run_that_was_taken_back_is_told_of(store: Store, database_url: str) -> None:
    """Whoever runs it is to end it; what is let go is not told of."""
    batch = await running_batch(store, 3)
    mine, dropped, free = await claimed(store, batch, 3)
    async with beating(database_url) as (heartbeat, lost, _):
        heartbeat.hold([mine.run, dropped.run, free.run])
        heartbeat.let_go([free.run])
        await store.batch_queue.give_back([dropped.run, free.run], is_unharmed=True)
        await until(lambda: lost)
    assert lost == [dropped.run]


async def test_leases_are_renewed_again_after_the_connection_broke(
    store: Store, database_url: str
) -> None:
    """A new one is made, and what came meanwhile is looked for."""
    batch = await running_batch(store, 1)
    [item] = await claimed(store, batch)
    async with beating(database_url) as (heartbeat, lost, woken):
        await until(woken.is_set)
        woken.clear()
        async with store.database.as_itself() as connection:
            ended = text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'sluice leases' AND datname = current_database()"
            )
            await connection.execute(ended)
        await until(woken.is_set)
        heartbeat.hold([item.run])
        await store.batch_queue.give_back([item.run], is_unharmed=True)
        await until(lambda: lost == [item.run])


async def test_a_new_batch_is_heard_of(store: Store, database_url: str) -> None:
    """Nobody waits for the next poll."""
    async with beating(database_url) as (_, _, woken):
        await until(woken.is_set)
        woken.clear()
        await running_batch(store, 1)
        await until(woken.is_set)
