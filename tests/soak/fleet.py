"""Several gateways of a simulated engine that share one PostgreSQL and one Valkey."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import asyncpg
import httpx
from redis.asyncio import Redis

from gateway.credentials import ADMIN_PREFIX, KEY_PREFIX, new_token
from gateway.services.local_access import read_local_access
from gateway.store.embedded import EmbeddedServers
from gateway.store.postgres_server import LOGIN, OWNER, SUPERUSER
from tests.counted import newest_slot
from tests.faults.proxy import FaultProxy
from tests.faults.replica import Replica, free_port

MODEL: Final = "sluice-demo"
FLAGS: Final = ("--engine", "simulated", "--engine-profile", "a100-llama-3-8b")
TENANT: Final = "acme"


@dataclass
class Fleet:
    """Hold running gateways and the way to their stores; one tenant with one key."""

    replicas: list[Replica]
    admin_ports: list[int]
    key: str
    admin_token: str
    redis: Redis
    database: asyncpg.Pool
    servers: EmbeddedServers
    tenant_id: str = ""
    key_id: str = ""
    # An idle connection is given up before the server does so, after as many seconds as httpx.
    _client: httpx.AsyncClient = field(
        default_factory=lambda: httpx.AsyncClient(
            timeout=30, limits=httpx.Limits(keepalive_expiry=2.0)
        )
    )

    async def admin(self, method: str, path: str, body: Any = None, *, at: int = 0) -> Any:
        """Ask the admin API of one gateway."""
        return (await self._admin(method, path, body, at, self.admin_token)).json()

    async def metrics(self, *, at: int = 0) -> str:
        """Return the metrics of one gateway as it writes them, whatever its stores do."""
        access = read_local_access(self.replicas[at].data_dir)
        assert access is not None, "it runs on this machine"
        return (await self._admin("GET", "/metrics", None, at, access.local_token)).text

    async def window(self, kind: str = "tenant", name: str = "tokens.day") -> tuple[int, int]:
        """Return what the newest slot of a window has used and holds, read from Redis itself."""
        scope = self.tenant_id if kind == "tenant" else self.key_id
        key = f"sluice:q:{kind}:{scope}"
        return newest_slot(await self.redis.get(key), name)

    async def ledger(self) -> dict[str, int]:
        """Sum the ledger."""
        row = await self.database.fetchrow(
            "SELECT count(*) AS rows, coalesce(sum(input_tokens + output_tokens), 0) AS tokens, "
            "coalesce(sum(nano_usd), 0) AS nano_usd, "
            "count(*) FILTER (WHERE outcome = 'lost') AS lost FROM usage_events"
        )
        assert row is not None
        return {name: int(value) for name, value in row.items()}

    async def _admin(
        self, method: str, path: str, body: Any, at: int, token: str
    ) -> httpx.Response:
        answer = await self._client.request(
            method,
            f"http://127.0.0.1:{self.admin_ports[at]}/admin/v1{path}",
            json=body,
            headers={"authorization": f"Bearer {token}"},
        )
        assert answer.is_success, (answer.status_code, answer.text)
        return answer

    async def close(self) -> None:
        for replica in self.replicas:
            replica.send(signal.SIGKILL)
        for replica in self.replicas:
            if replica.process is not None:
                await replica.wait_ended()
        await self._client.aclose()


@asynccontextmanager
async def running_fleet(
    directory: Path,
    *,
    size: int,
    redis_proxies: Sequence[FaultProxy] = (),
    database_url: str | None = None,
    flags: Sequence[str] = FLAGS,
    own: Callable[[int], Mapping[str, str]] = lambda number: {},
    trees: Sequence[Path | None] = (),
    num_started: int | None = None,
    **settings: str,
) -> AsyncIterator[Fleet]:
    """Start stores and gateways, or the first `num_started` of these.

    They reach Redis through `redis_proxies`, where there are some, in turn, and are told of
    `database_url` instead of the truth. `settings` are environment variables of all gateways, `own`
    returns those of one. `trees` are of which release each is, None being this one.
    """
    with EmbeddedServers(directory / "stores") as servers:
        key, admin = new_token(KEY_PREFIX).text, new_token(ADMIN_PREFIX).text
        admin_ports = [free_port() for _ in range(size)]
        replicas = []
        for number, admin_port in enumerate(admin_ports):
            url = database_url or servers.database_url()
            redis_url = servers.redis_url()
            if redis_proxies:
                redis_url = redis_proxies[number % len(redis_proxies)].redis_url(redis_url)
            env = {
                "SLUICE_DATABASE_URL": url,
                "SLUICE_DATABASE_OWNER_URL": url.replace(LOGIN, OWNER, 1),
                "SLUICE_REDIS_URL": redis_url,
                "SLUICE_INIT_TENANTS": TENANT,
                "SLUICE_INIT_KEYS": key,
                "SLUICE_INIT_ADMIN_TOKEN": admin,
                "SLUICE_ADMIN_PORT": str(admin_port),
                "SLUICE_DRAIN_ACCEPT_S": "0",
                **settings,
                **own(number),
            }
            tree = trees[number] if trees else None
            data_dir = directory / f"gateway-{number}"
            replicas.append(Replica(data_dir, free_port(), tuple(flags), env, tree=tree))
        _share_root(directory, replicas)
        # As nobody else: row-level security would show the owner nothing.
        database = await asyncpg.create_pool(servers.database_url(SUPERUSER), min_size=0)
        redis = Redis.from_url(servers.redis_url())
        fleet = Fleet(replicas, admin_ports, key, admin, redis, database, servers)
        try:
            for replica in replicas[:num_started]:
                replica.start()
                await replica.wait_ready(timeout_s=120)
            fleet.tenant_id = str(
                await database.fetchval("SELECT id FROM tenants WHERE name = $1", TENANT)
            )
            fleet.key_id = str(await database.fetchval("SELECT id FROM keys LIMIT 1"))
            yield fleet
        finally:
            await fleet.close()
            await redis.aclose()
            await database.close()


def completion(prompt: int, max_tokens: int, **fields: Any) -> bytes:
    """Encode a request of so many tokens; it generates as many as it may."""
    body = {
        "model": MODEL,
        "prompt": [512 + number % 400 for number in range(prompt)],
        "max_tokens": max_tokens,
        "ignore_eos": True,
        **fields,
    }
    return json.dumps(body).encode()


async def until(condition: Any, *, timeout_s: float, every_s: float = 0.1) -> float:
    """Wait until an async condition holds; return how long it took. Raises: `TimeoutError`."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.timeout(timeout_s):
        while not await condition():
            await asyncio.sleep(every_s)
    return loop.time() - began


def _share_root(directory: Path, replicas: Sequence[Replica]) -> None:
    """Give all gateways one root secret, as an operator does."""
    from gateway.store.secrets import open_secrets

    open_secrets(replicas[0].data_dir)
    secret = (replicas[0].data_dir / "secrets" / "root").read_bytes()
    for replica in replicas[1:]:
        path = replica.data_dir / "secrets" / "root"
        path.parent.mkdir(mode=0o700, parents=True)
        path.touch(mode=0o600)
        path.write_bytes(secret)
