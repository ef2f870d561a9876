"""Processes that run items of a batch, and what is done to them: killed, or stopped beyond leases.

What comes of it is read from PostgreSQL itself. Each run of an item is a request with an id of its
own, which its result and its bill name: so what was stored in the name of an earlier run shows.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from uuid import UUID, uuid4

import asyncpg

from gateway.domain.batch import BatchDraft, ItemRun, NewItem
from gateway.domain.files import BATCH_INPUT, FileDraft
from gateway.services.batches.worker_items import request_id_of
from gateway.store import Store
from tests.soak.batch_process import Spec

_WATCH_S = 0.25
_LINE = b'{"custom_id":"r%06d","body":{}}\n'


@dataclass
class Outcome:
    """Hold what PostgreSQL has of a batch in the end.

    `late` are results that came from runs which had lost their items, and were dropped; `stale`
    are items whose result or bill is of such a run all the same.
    """

    items: int = 0
    results: int = 0
    rows: int = 0
    late: int = 0
    stale: int = 0
    lost: int = 0
    duplicate_results: int = 0
    duplicate_rows: int = 0


@dataclass
class Faults:
    """Hold what was done to workers, and how long it took until others had their items."""

    kills: int = 0
    stops: int = 0
    parked: int = 0
    seconds: float = 0.0
    recovery_s: list[float] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.kills + self.stops


async def stored_batch(store: Store, num_items: int) -> UUID:
    """Store a batch that has been validated; its input is in the storage. Return its id."""
    assert store.first_start is not None
    key = store.first_start.keys[0].key
    lines = [_LINE % number for number in range(1, num_items + 1)]
    size = len(lines[0])
    draft = FileDraft(uuid4(), key.tenant_id, "input.jsonl", BATCH_INPUT)

    async def chunks() -> AsyncIterator[bytes]:
        yield b"".join(lines)

    await store.files.begin(draft)
    written = await store.file_storage.write(draft.id, chunks(), max_bytes=1 << 30)
    await store.files.complete(key.tenant_id, draft.id, written, max_stored_bytes=None)
    batch = BatchDraft(uuid4(), key.tenant_id, key.id, "/v1/completions", draft.id, 86_400)
    await store.batches.create(batch)
    items = [
        NewItem(number, f"r{number:06}", number, size * (number - 1), size, 10)
        for number in range(1, num_items + 1)
    ]
    for first in range(0, num_items, 1000):
        await store.batch_steps.add_items(batch.id, items[first : first + 1000])
    assert await store.batch_steps.start(batch.id, {})
    return batch.id


class Workers:
    """Hold processes of one kind; `database` sees everything."""

    def __init__(
        self, zygote: asyncio.subprocess.Process, how: str, spec: Spec, database: asyncpg.Pool
    ) -> None:
        self._zygote = zygote
        self._how = how
        self._spec = spec
        self._database = database
        self._batch_id = UUID(spec.batch_id)
        self._running: dict[UUID, int] = {}
        self._stopped: dict[UUID, asyncio.Task[None]] = {}
        self._forking = asyncio.Lock()
        self._watched: dict[ItemRun, float] = {}
        self.faults = Faults()

    async def start(self, number: int) -> None:
        for _ in range(number):
            await self._fork()

    async def kill(self, worker_id: UUID, *, is_followed: bool = True) -> None:
        """Kill a worker; another takes its place unless told."""
        pid = self._running.pop(worker_id)
        await self._watch(worker_id)
        os.kill(pid, signal.SIGKILL)
        self.faults.kills += 1
        if is_followed:
            await self._fork()

    async def stop(self, worker_id: UUID, seconds: float) -> None:
        """Stop a worker for a while; it goes on as if nothing had been."""
        pid = self._running[worker_id]
        await self._watch(worker_id)
        os.kill(pid, signal.SIGSTOP)
        self.faults.stops += 1

        async def go_on() -> None:
            await asyncio.sleep(seconds)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
            del self._stopped[worker_id]

        self._stopped[worker_id] = asyncio.create_task(go_on())

    async def hurt(self, draw: random.Random, stop_s: tuple[float, float]) -> None:
        """Kill or stop one that is not stopped now."""
        living = [one for one in self._running if one not in self._stopped]
        if not living:
            return
        worker_id = draw.choice(living)
        if draw.random() < 0.5:
            await self.kill(worker_id)
        else:
            await self.stop(worker_id, draw.uniform(*stop_s))

    def living(self) -> list[UUID]:
        return list(self._running)

    async def num_open(self) -> int:
        """Count the items that are not over."""
        query = (
            "SELECT count(*) FROM batch_items WHERE batch_id = $1 "
            "AND state IN ('pending', 'running')"
        )
        return int(await self._database.fetchval(query, self._batch_id))

    async def held(self) -> int:
        """Count the items that somebody runs."""
        query = "SELECT count(*) FROM batch_items WHERE batch_id = $1 AND state = 'running'"
        return int(await self._database.fetchval(query, self._batch_id))

    async def requeue(self, *, hurries: bool = False) -> None:
        """Put items back whose workers died too often, as an operator; all, in a hurry."""
        which = "run_after > clock_timestamp()" if hurries else "run_after = 'infinity'"
        # What others have locked is left to the next look: they lock in orders of their own.
        rows = await self._database.fetch(
            "WITH parked AS MATERIALIZED (SELECT line FROM batch_items "
            f"WHERE batch_id = $1 AND state = 'pending' AND {which} FOR UPDATE SKIP LOCKED) "
            "UPDATE batch_items AS item SET run_after = clock_timestamp(), num_deaths = 0 "
            "FROM parked WHERE item.batch_id = $1 AND item.line = parked.line "
            "RETURNING item.line, item.generation",
            self._batch_id,
        )
        for row in rows:
            self._watched.pop(ItemRun(self._batch_id, row["line"], row["generation"]), None)
        self.faults.parked += len(rows)

    async def look(self) -> int:
        """See which items of workers that were hurt have others by now; return how many do not."""
        # More may come while the database answers.
        watched = dict(self._watched)
        if watched:
            rows = await self._database.fetch(
                "SELECT line, generation, state FROM batch_items "
                "WHERE batch_id = $1 AND line = ANY($2)",
                self._batch_id,
                [run.line for run in watched],
            )
            found = {row["line"]: row for row in rows}
            now = time.monotonic()
            for run, since in watched.items():
                row = found[run.line]
                if row["generation"] > run.generation or row["state"] in ("done", "failed"):
                    self._watched.pop(run, None)
                    self.faults.recovery_s.append(now - since)
        return len(self._watched)

    @asynccontextmanager
    async def looking(self, *, requeues: bool, hurries: bool = False) -> AsyncIterator[None]:
        """Look again and again while the block runs."""

        async def look() -> None:
            while True:
                await self.look()
                if requeues:
                    await self.requeue(hurries=hurries)
                await asyncio.sleep(_WATCH_S)

        async with asyncio.TaskGroup() as group:
            task = group.create_task(look())
            yield
            task.cancel()

    async def end(self) -> None:
        """Kill all that is left."""
        for task in list(self._stopped.values()):
            task.cancel()
        for pid in self._running.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._zygote.kill()
        await self._zygote.wait()

    async def _fork(self) -> None:
        worker_id = uuid4()
        async with self._forking:
            assert self._zygote.stdin is not None
            assert self._zygote.stdout is not None
            self._zygote.stdin.write(f"{self._how} {worker_id}\n".encode())
            self._running[worker_id] = int(await self._zygote.stdout.readline())

    async def _watch(self, worker_id: UUID) -> None:
        rows = await self._database.fetch(
            "SELECT line, generation FROM batch_items "
            "WHERE batch_id = $1 AND state = 'running' AND worker_id = $2",
            self._batch_id,
            worker_id,
        )
        now = time.monotonic()
        for row in rows:
            self._watched[ItemRun(self._batch_id, row["line"], row["generation"])] = now


@asynccontextmanager
async def running_workers(
    how: str, spec: Spec, database: asyncpg.Pool, number: int
) -> AsyncIterator[Workers]:
    """Run so many processes while the block runs; their log is beside the journal."""
    log = os.open(f"{spec.spool}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    zygote = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.soak.batch_process", spec.text()),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=log,
    )
    os.close(log)
    workers = Workers(zygote, how, spec, database)
    try:
        await workers.start(number)
        yield workers
    finally:
        await workers.end()


async def outcome_of(database: asyncpg.Pool, batch_id: UUID) -> Outcome:
    """Hold results and bills against the items."""
    items = await database.fetch(
        "SELECT line, generation, state FROM batch_items WHERE batch_id = $1", batch_id
    )
    results = await database.fetch(
        "SELECT line, body FROM batch_results WHERE batch_id = $1", batch_id
    )
    bills = await database.fetch("SELECT request_id, outcome FROM usage_events WHERE is_batch")
    counted = await database.fetchval(
        "SELECT num_done + num_failed FROM batches WHERE id = $1", batch_id
    )
    runs = {
        request_id_of(run).hex: run
        for item in items
        for run in (
            ItemRun(batch_id, item["line"], number) for number in range(1, item["generation"] + 1)
        )
    }
    last = {item["line"]: item["generation"] for item in items}
    billed = [
        runs[b["request_id"].hex]
        for b in bills
        if b["outcome"] == "completed" and b["request_id"].hex in runs
    ]
    by_line = Counter(run.line for run in billed)
    answered = {row["line"]: runs.get(_run_id(row["body"])) for row in results}
    stale = {run.line for run in billed if run.generation != last[run.line]}
    stale |= {line for line, run in answered.items() if run is None or run.generation != last[line]}
    lost = [
        item["line"]
        for item in items
        if item["state"] != "done" or item["line"] not in answered or not by_line[item["line"]]
    ]
    return Outcome(
        items=len(items),
        results=len(results),
        rows=len(billed),
        late=sum(b["outcome"] != "completed" and b["request_id"].hex in runs for b in bills),
        stale=len(stale),
        lost=len(lost),
        duplicate_results=len(results) - len(answered) + max(0, counted - len(items)),
        duplicate_rows=len(billed) - len(by_line),
    )


def _run_id(body: bytes) -> str:
    return str(json.loads(body)["id"]).removeprefix("batch_req_")
