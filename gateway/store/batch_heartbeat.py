"""The thread that renews the leases of batches' items, with an event loop and a connection of its
own: however busy the process is, what it runs stays its own.

It renews every `HEARTBEAT_S`, and says which runs no longer hold: their items were taken back. Over
the same connection it is told of new batches (`LISTEN`). What it cannot renew for as long as
PostgreSQL is away may be taken back once that is there again, by whoever comes first.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import asyncpg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.domain.batch import ItemRun
from gateway.store.batch_queue import CHANNEL, renew_runs
from gateway.store.database import PLATFORM_ROLE, STEP_DOWN, plain_url
from gateway.store.pools import RULES, Purpose, open_pool
from gateway.store.sql_faults import SILENCE

logger = logging.getLogger(__name__)

HEARTBEAT_S: Final = 10.0
LEASE_S: Final = 30.0
_RETRY_S: Final = 1.0
_STOP_S: Final = 10.0

OnLost = Callable[[Collection[ItemRun]], None]


class BatchHeartbeat:
    """Implement `HoldsLeases` while `beating` is entered. Its methods may be called by any thread.

    What it says is said on the event loop that entered it.
    """

    def __init__(
        self, url: str, *, interval_s: float = HEARTBEAT_S, lease_s: float = LEASE_S
    ) -> None:
        self._dsn = plain_url(url)
        self._interval_s = interval_s
        self._lease_s = lease_s
        self._lock = threading.Lock()
        self._held: set[ItemRun] = set()
        self._beats: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._began = threading.Event()

    def hold(self, runs: Collection[ItemRun]) -> None:
        """Renew the leases of these, from the next beat on."""
        with self._lock:
            self._held.update(runs)

    def let_go(self, runs: Collection[ItemRun]) -> None:
        """Renew these no longer."""
        with self._lock:
            self._held.difference_update(runs)

    @asynccontextmanager
    async def beating(self, on_lost: OnLost, on_woken: Callable[[], None]) -> AsyncIterator[None]:
        """Renew while the block runs; tell of runs that do not hold, and of new batches."""
        loop = asyncio.get_running_loop()

        def tell(what: Callable[..., None], *told: object) -> None:
            # A loop that is closed has nobody left to be told.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(what, *told)

        def run() -> None:
            asyncio.run(self._beat(lambda runs: tell(on_lost, runs), lambda: tell(on_woken)))

        thread = threading.Thread(target=run, name="batch-leases", daemon=True)
        thread.start()
        await asyncio.to_thread(self._began.wait)
        try:
            yield
        finally:
            assert self._beats is not None, "it has begun"
            assert self._stop is not None
            with suppress(RuntimeError):
                self._beats.call_soon_threadsafe(self._stop.set)
            await asyncio.to_thread(thread.join, _STOP_S)

    async def _beat(self, on_lost: OnLost, on_woken: Callable[[], None]) -> None:
        self._beats, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._began.set()
        pool = open_pool(self._dsn, Purpose.LEASES, RULES[Purpose.LEASES])
        try:
            while not self._stop.is_set():
                try:
                    async with pool.connect() as connection:
                        await self._serve(connection, on_lost, on_woken)
                except (DBAPIError, asyncpg.PostgresError, *SILENCE) as exc:
                    logger.warning("leases of batches are not renewed: %r", exc)
                    await self._pause(_RETRY_S)
                except Exception:
                    logger.exception("leases of batches are not renewed")
                    await self._pause(_RETRY_S)
        finally:
            await pool.dispose()

    async def _serve(
        self, connection: AsyncConnection, on_lost: OnLost, on_woken: Callable[[], None]
    ) -> None:
        """Renew over one connection until it fails, or all ends."""
        assert self._stop is not None, "it has begun"
        raw: Any = (await connection.get_raw_connection()).driver_connection
        await raw.add_listener(CHANNEL, lambda *told: on_woken())
        # What was said before is not heard.
        on_woken()
        while not self._stop.is_set():
            await self._renew(connection, on_lost)
            await self._pause(self._interval_s)

    async def _renew(self, connection: AsyncConnection, on_lost: OnLost) -> None:
        with self._lock:
            held = frozenset(self._held)
        if not held:
            # That the connection lives is learned all the same.
            await connection.scalar(STEP_DOWN, {"role": "none", "tenant_id": ""})
            await connection.rollback()
            return
        async with connection.begin():
            await connection.execute(STEP_DOWN, {"role": PLATFORM_ROLE, "tenant_id": ""})
            renewed = await renew_runs(connection, held, self._lease_s)
        lost = held - set(renewed)
        if lost:
            # Also of what was let go meanwhile: whoever is told knows.
            self.let_go(lost)
            on_lost(lost)

    async def _pause(self, pause_s: float) -> None:
        assert self._stop is not None, "it has begun"
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._stop.wait()
