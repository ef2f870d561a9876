"""A fleet whose stores can be made to fail: killed, stopped, emptied, cut off, reset."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from gateway.store.valkey_server import SOCKET
from tests.faults.proxy import Fault, FaultProxy
from tests.soak.fleet import TENANT, Fleet, running_fleet, until

# Has limits that may never be passed, while the other's only hold it back.
HARD: Final = TENANT
SOFT: Final = "globex"
_RESET_EVERY_S: Final = 0.05
_BACK_S: Final = 60.0


@dataclass
class FaultyStores:
    """Hold a fleet that reaches Valkey through a proxy; PostgreSQL it reaches without one."""

    fleet: Fleet
    proxy: FaultProxy
    stores: Path
    soft_key: str

    async def kill_redis(self) -> None:
        """Kill Valkey with `kill -9`; it is back, and empty, when this returns."""
        before = self._pid("valkey/valkey.pid")
        os.kill(before, signal.SIGKILL)

        async def is_back() -> bool:
            return self._pid("valkey/valkey.pid") != before and await self.redis_answers()

        await until(is_back, timeout_s=_BACK_S, every_s=0.02)

    async def flush_redis(self) -> None:
        """Make Valkey forget everything."""
        await self.fleet.redis.flushall()

    async def stop_redis(self, seconds: float) -> None:
        """Stop Valkey for a while: it takes connections and answers nothing."""
        with stopped([self._pid("valkey/valkey.pid")]):
            await asyncio.sleep(seconds)

    async def black_hole_redis(self, seconds: float) -> None:
        """Let nothing pass between gateways and Valkey for a while, and all of it afterwards."""
        self.proxy.fault = Fault(blackhole=True)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.proxy.fault = Fault()

    async def reset_redis(self, seconds: float) -> None:
        """Reset every connection to Valkey, again and again for a while."""
        for _ in range(max(1, round(seconds / _RESET_EVERY_S))):
            self.proxy.reset_all()
            await asyncio.sleep(_RESET_EVERY_S)

    def postgres_pids(self) -> list[int]:
        """Return the processes of PostgreSQL, the first of them last."""
        first = self._pid("postgres/postmaster.pid")
        children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        return [*map(int, children), first]

    async def redis_answers(self) -> bool:
        try:
            return bool(await self.fleet.redis.ping())
        except (RedisError, OSError):
            return False

    async def window(self) -> tuple[int, int] | None:
        """Return what the hard tenant's day has used and holds; None where nobody can say."""
        try:
            return await self.fleet.window()
        except (RedisError, OSError):
            return None

    async def billed(self, tenant: str) -> int:
        """Return the tokens of a tenant in the ledger."""
        return int(
            await self.fleet.database.fetchval(
                "SELECT coalesce(sum(input_tokens + output_tokens), 0) FROM usage_events "
                "JOIN tenants ON tenants.id = usage_events.tenant_id WHERE name = $1",
                tenant,
            )
        )

    async def metric(self, name: str, at: int) -> float:
        """Return a metric of one gateway."""
        text = await self.fleet.metrics(at=at)
        found = re.search(rf"^{name} ([\d.e+-]+)$", text, re.MULTILINE)
        assert found is not None, name
        return float(found[1])

    def _pid(self, file: str) -> int:
        try:
            return int((self.stores / file).read_text().split(maxsplit=1)[0])
        except (FileNotFoundError, IndexError):
            return 0


@asynccontextmanager
async def faulty_stores(
    directory: Path, *, size: int, **settings: str
) -> AsyncIterator[FaultyStores]:
    """Start it all: the hard tenant is the fleet's own, the soft one has limits out of reach."""
    stores = directory / "stores"
    socket = stores / "sockets" / SOCKET
    async with (
        FaultProxy(str(socket), None) as proxy,
        running_fleet(directory, size=size, redis_proxies=[proxy], **settings) as fleet,
    ):
        assert fleet.servers.sockets == socket.parent, "the directory's name is too long"
        await fleet.redis.aclose()
        fleet.redis = impatient(fleet.servers.redis_url())
        await fleet.admin("POST", "/tenants", {"name": SOFT})
        await _limit(fleet, SOFT)
        issued = await fleet.admin("POST", "/keys", {"tenant": SOFT})
        try:
            yield FaultyStores(fleet, proxy, stores, issued["key"])
        finally:
            await fleet.redis.aclose()


@contextmanager
def stopped(pids: Sequence[int]) -> Iterator[None]:
    """Stop processes while the block runs."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in reversed(pids):
            os.kill(pid, signal.SIGCONT)


async def _limit(fleet: Fleet, tenant: str) -> Any:
    limits = {"rpm": 10**6, "input_tpm": 10**8, "output_tpm": 10**8, "concurrency": 10**5}
    return await fleet.admin("PATCH", f"/quotas/tenant/{tenant}", limits)


def impatient(url: str) -> Redis:
    """Make a client that gives up soon, as what it asks is about to be stopped."""
    return Redis.from_url(
        url, retry=Retry(NoBackoff(), 0), socket_timeout=0.3, socket_connect_timeout=0.3
    )
