"""A worker of batches, forked again and again: `python -m tests.soak.batch_process SPEC`.

The process imports everything once, then forks one for each line on its input, `work` or `claim`
and the worker's id, and answers with its pid. What `work`s is the real worker over the real queue,
renewals, journal and ledger, on an engine that only waits; what `claim`s is a bare client that
claims, waits and stores. Both go on until they are killed.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import random
import signal
import sys
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from uuid import UUID

import uvloop

from gateway.background import Background
from gateway.domain import KeyRecord, Principal
from gateway.domain.batch import ItemResult, ItemRun
from gateway.domain.price import Price
from gateway.domain.usage import ItemRow
from gateway.errors import GatewayError, StoreUnavailable
from gateway.services.batches.worker import BatchWorker
from gateway.services.batches.worker_gate import ByteGate
from gateway.services.batches.worker_items import ItemDesk, request_id_of
from gateway.services.batches.worker_payers import Payers
from gateway.services.batches.worker_ports import ItemAnswer, ItemOrder
from gateway.services.ledger import LedgerWriter, Spool
from gateway.store.batch_heartbeat import BatchHeartbeat
from gateway.store.batch_queue import SqlBatchQueue
from gateway.store.batches import SqlBatches
from gateway.store.database import Database
from gateway.store.file_storage import DirectoryStorage
from gateway.store.ledger import SqlLedger
from gateway.store.pools import RULES
from scheduler.state import Room
from tests.gateway.usage_rows import usage_row

_BARE_CLAIM: Final = 8
_NUM_TOKENS: Final = 20
_PR_SET_PDEATHSIG: Final = 1
# Of each purpose; the private server has 64 connections for all.
_RULES: Final = {purpose: replace(rules, size=2) for purpose, rules in RULES.items()}


@dataclass(frozen=True)
class Spec:
    """Say which stores, whose batches, how long an item takes and how long a lease lasts."""

    database_url: str
    spool: str
    files: str
    organisation_id: str
    tenant_id: str
    key_id: str
    batch_id: str
    lease_s: float
    heartbeat_s: float
    poll_s: float
    slots: int
    item_s: tuple[float, float]

    def text(self) -> str:
        """Spell it for the command line."""
        return json.dumps(asdict(self))

    def principal(self) -> Principal:
        organisation_id, tenant_id = UUID(self.organisation_id), UUID(self.tenant_id)
        return Principal(organisation_id, tenant_id, "acme", 1.0, UUID(self.key_id), "k")


class OneKey:
    """Know the key that pays, and no price."""

    def __init__(self, spec: Spec) -> None:
        self._record = KeyRecord(spec.principal(), ())

    async def of_id(self, key_id: UUID) -> KeyRecord | None:
        return self._record if key_id == self._record.principal.key_id else None

    async def version(self, price_id: UUID) -> Price | None:
        return None


class WaitingEngine:
    """Take some time for each item, and say nothing."""

    def __init__(self, spec: Spec, spool: Spool) -> None:
        self._spec = spec
        self._spool = spool
        self._slots = asyncio.Semaphore(spec.slots)
        self._draw = random.Random()

    def room(self) -> Room:
        return Room(self._spec.slots, 0, 0, 0, 0.0)

    async def run(self, order: ItemOrder) -> ItemAnswer:
        order.begun()
        async with self._slots:
            await asyncio.sleep(self._draw.uniform(*self._spec.item_s))

        def keep(result: ItemResult) -> None:
            self._spool.append(item_row(order.principal, result))

        return ItemAnswer(200, b"{}", False, _NUM_TOKENS, keep, lambda: None)

    def refuse(self, order: ItemOrder, error: GatewayError) -> ItemAnswer:
        raise AssertionError("nothing is refused here")


def item_row(principal: Principal, result: ItemResult) -> ItemRow:
    """Bill a run of an item; each run is a request of its own."""
    now = datetime.now(UTC)
    row = usage_row(
        request_id=request_id_of(result.run),
        organisation_id=principal.organisation_id,
        tenant_id=principal.tenant_id,
        key_id=principal.key_id,
        is_batch=True,
        at=now,
        ended_at=now,
    )
    return ItemRow.of(row, result)


async def work(spec: Spec, worker_id: UUID) -> None:
    """Run items as a gateway does until killed."""
    database = Database(spec.database_url, _RULES)
    heartbeat = BatchHeartbeat(spec.database_url, interval_s=spec.heartbeat_s, lease_s=spec.lease_s)
    spool = Spool(Path(spec.spool))
    engine, keys = WaitingEngine(spec, spool), OneKey(spec)
    worker = BatchWorker(
        SqlBatches(database),
        SqlBatchQueue(database),
        ItemDesk(DirectoryStorage(Path(spec.files)), engine, ByteGate()),
        Payers(keys, keys),
        heartbeat,
        {"m": engine},
        poll_s=spec.poll_s,
        lease_s=spec.lease_s,
    )
    # So that whoever kills it knows what it held.
    worker.worker_id = worker_id
    writer = LedgerWriter(SqlLedger(database), spool, on_written=worker.written)
    async with (
        spool.syncing(),
        writer.running(),
        heartbeat.beating(worker.lost, worker.woken),
        worker.running(),
    ):
        await asyncio.Event().wait()


async def claim(spec: Spec, worker_id: UUID) -> None:
    """Claim, wait and store until killed; nothing is renewed."""
    database = Database(spec.database_url, _RULES)
    queue, ledger = SqlBatchQueue(database), SqlLedger(database)
    batch_id, principal, draw = UUID(spec.batch_id), spec.principal(), random.Random()

    async def sweep() -> None:
        await queue.take_back(100)

    async with Background("taking items back", sweep, interval_s=spec.poll_s):
        while True:
            try:
                items = await queue.claim(
                    batch_id, worker_id, limit=_BARE_CLAIM, lease_s=spec.lease_s
                )
                await asyncio.sleep(draw.uniform(*spec.item_s))
                results = [ItemResult(item.run, False, output_line(item.run)) for item in items]
                await ledger.insert([item_row(principal, result) for result in results])
            except StoreUnavailable:
                await asyncio.sleep(0.1)


def output_line(run: ItemRun) -> bytes:
    """Say which run has answered, where the real worker's lines say so too."""
    return json.dumps({"id": f"batch_req_{request_id_of(run).hex}"}).encode()


def main() -> None:
    spec = Spec(**json.loads(sys.argv[1]))
    # Nobody waits for the dead.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        how, worker_id = line.split()
        pid = os.fork()
        if pid == 0:
            # Nobody outlives the soak, however that ends.
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            uvloop.run((work if how == "work" else claim)(spec, UUID(worker_id)))
            os._exit(0)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
