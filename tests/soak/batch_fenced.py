"""A batch whose workers are killed and stopped beyond their leases: each item is stored once.

Three runs: the real worker with short leases and a fault every two seconds; a bare client of the
queue with shorter ones and a fault every 150 ms; and the real worker at the product's own leases,
some of which die and nobody follows, for how long their items wait.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from uuid import UUID

import asyncpg

from gateway.services.batches.worker import LEASE_S, POLL_S
from gateway.services.ledger import LedgerWriter, Spool
from gateway.settings import Settings
from gateway.store import Store, open_store
from gateway.store.batch_heartbeat import HEARTBEAT_S
from gateway.store.embedded import EmbeddedServers
from gateway.store.postgres_server import OWNER, SUPERUSER
from tests.soak.batch_process import Spec
from tests.soak.batch_workers import (
    Faults,
    Outcome,
    Workers,
    outcome_of,
    running_workers,
    stored_batch,
)
from tests.soak.fleet import until

_RECOVERY_WORKERS: Final = 3
_PATIENCE_S: Final = 90.0


@dataclass
class Fenced:
    """Hold what was done, and what PostgreSQL has in the end."""

    faults: Faults
    outcome: Outcome


@dataclass(frozen=True)
class Ground:
    """Hold a store and where its processes keep things; `database` sees everything."""

    store: Store
    database: asyncpg.Pool
    database_url: str
    directory: Path

    async def spec(self, batch_id: UUID) -> Spec:
        assert self.store.first_start is not None
        key = self.store.first_start.keys[0].key
        organisation = await self.store.organisations.default()
        return Spec(
            database_url=self.database_url,
            spool=str(self.directory / f"spool-{batch_id}"),
            files=str(self.directory / "files"),
            organisation_id=str(organisation.id),
            tenant_id=str(key.tenant_id),
            key_id=str(key.id),
            batch_id=str(batch_id),
            lease_s=1.5,
            heartbeat_s=0.5,
            poll_s=0.5,
            slots=4,
            item_s=(0.3, 1.0),
        )


@asynccontextmanager
async def fenced_ground(directory: Path) -> AsyncIterator[Ground]:
    """Start stores of their own, migrated."""
    with EmbeddedServers(directory / "stores") as servers:
        settings = Settings(
            data_dir=directory / "first",
            database_url=servers.database_url(),
            database_owner_url=servers.database_url(OWNER),
            redis_url=servers.redis_url(),
            file_storage=str(directory / "files"),
        )
        async with (
            open_store(settings) as store,
            asyncpg.create_pool(servers.database_url(SUPERUSER), min_size=1, max_size=3) as pool,
        ):
            yield Ground(store, pool, servers.database_url(), directory)


async def fenced_workers(
    ground: Ground, *, items: int, workers: int, faults: int, every_s: float = 2.0, seed: int = 1
) -> Fenced:
    """Hurt real workers until all is done, and at least so often."""
    batch_id = await stored_batch(ground.store, items)
    spec = await ground.spec(batch_id)
    async with (
        running_workers("work", spec, ground.database, workers) as running,
        running.looking(requeues=True),
    ):
        await _hurt(running, faults, every_s, (1.6, 3.0), random.Random(seed))
        await until(_is_over(running), timeout_s=_PATIENCE_S)
        await until(_has_recovered(running), timeout_s=_PATIENCE_S)
    await _store_what_is_left(ground.store, Path(spec.spool))
    return Fenced(running.faults, await outcome_of(ground.database, batch_id))


async def fenced_clients(
    ground: Ground, *, items: int, workers: int = 4, every_s: float = 0.15, seed: int = 1
) -> Fenced:
    """Hurt bare clients of the queue until all is done; who dies is followed."""
    batch_id = await stored_batch(ground.store, items)
    spec = replace(await ground.spec(batch_id), lease_s=0.4, poll_s=0.1, item_s=(0.05, 0.3))
    async with (
        running_workers("claim", spec, ground.database, workers) as running,
        running.looking(requeues=True, hurries=True),
    ):
        await _hurt(running, 1, every_s, (0.45, 0.8), random.Random(seed))
        await until(_is_over(running), timeout_s=_PATIENCE_S)
    return Fenced(running.faults, await outcome_of(ground.database, batch_id))


async def recovery_s(ground: Ground, *, workers: int, items: int = 5000) -> list[float]:
    """Kill some workers that nobody follows, at the product's leases; return when others had each
    of their items.
    """
    batch_id = await stored_batch(ground.store, items)
    spec = replace(
        await ground.spec(batch_id), lease_s=LEASE_S, heartbeat_s=HEARTBEAT_S, poll_s=POLL_S
    )
    async with running_workers("work", spec, ground.database, workers) as running:

        async def are_busy() -> bool:
            return await running.held() >= workers * spec.slots

        await until(are_busy, timeout_s=_PATIENCE_S)
        async with running.looking(requeues=False):
            for worker_id in running.living()[:_RECOVERY_WORKERS]:
                await running.kill(worker_id, is_followed=False)
            await until(_has_recovered(running), timeout_s=_PATIENCE_S)
    return running.faults.recovery_s


async def _hurt(
    running: Workers,
    faults: int,
    every_s: float,
    stop_s: tuple[float, float],
    draw: random.Random,
) -> None:
    began = time.monotonic()
    while running.faults.total < faults or await running.num_open():
        await asyncio.sleep(every_s * draw.uniform(0.5, 1.5))
        await running.hurt(draw, stop_s)
    running.faults.seconds = time.monotonic() - began


async def _store_what_is_left(store: Store, spool: Path) -> None:
    """Take over the journal of the dead, as the next process of a data directory does."""
    journal = Spool(spool)
    async with LedgerWriter(store.ledger, journal).running():
        await until(_is_through(journal), timeout_s=_PATIENCE_S)
    journal.close()


def _is_over(running: Workers) -> Callable[[], object]:
    async def is_over() -> bool:
        return not await running.num_open()

    return is_over


def _has_recovered(running: Workers) -> Callable[[], object]:
    async def has_recovered() -> bool:
        return not await running.look()

    return has_recovered


def _is_through(journal: Spool) -> Callable[[], object]:
    async def is_through() -> bool:
        return not journal.depth

    return is_through
