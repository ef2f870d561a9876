"""The connection to Redis, and the epochs of what is known by credentials in it.

Nothing here is the only copy of anything. A call is tried once, for a short time: what waits
for Redis is a person's request. Who calls says what happens when it is away.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import cast

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

log = logging.getLogger(__name__)

_TIMEOUT_S = 1.0
# Keys and what hangs on them; admin tokens; what operators set of the schedulers.
AUTH_EPOCH, ADMIN_EPOCH = "sluice:auth_epoch", "sluice:admin_epoch"
SCHEDULER_EPOCH = "sluice:scheduler_epoch"
# uvloop has a word of its own for a transport that was closed.
_FAILURES = (RedisError, OSError, RuntimeError)
# Behind the epoch: what moved it, by the number that it had then.
_CHANGES, _CHANGES_KEPT = ":changes", 256
_ADVANCE = """
local epoch = redis.call('INCR', KEYS[1])
redis.call('RPUSH', KEYS[2], epoch .. ' ' .. ARGV[1])
redis.call('LTRIM', KEYS[2], -tonumber(ARGV[2]), -1)
"""


def connect_redis(url: str, *, timeout_s: float = _TIMEOUT_S) -> Redis:
    """Make a client with a pool of its own; it connects at the first call."""
    return Redis.from_url(
        url,
        retry=Retry(NoBackoff(), 0),
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
    )


def connect_for_pipe(url: str) -> Redis:
    """Make a client for a `RedisPipe`, which has its own limit on time."""
    return Redis.from_url(
        url,
        retry=Retry(NoBackoff(), 0),
        socket_timeout=None,
        socket_connect_timeout=_TIMEOUT_S,
    )


def is_cluster(info: Mapping[str, object]) -> bool:
    """Tell from the `server` section of INFO whether keys are spread over several servers."""
    return info.get("redis_mode", info.get("server_mode")) == "cluster"


class RedisAuthEpoch:
    """Count changes in Redis. It fails open: the life of each process's cache is the bound."""

    def __init__(self, redis: Redis, name: str = AUTH_EPOCH) -> None:
        self._redis = redis
        self._name = name

    async def current(self) -> int | None:
        try:
            value = await self._redis.get(self._name)
            return int(value or 0)
        except _FAILURES as exc:
            log.warning("%s unreadable: %s", self._name, exc)
            return None

    async def advance(self, changed: str | None = None) -> None:
        try:
            if changed is None:
                await self._redis.incr(self._name)
            else:
                names = (self._name, self._name + _CHANGES)
                await self._redis.eval(_ADVANCE, len(names), *names, changed, _CHANGES_KEPT)
        except _FAILURES as exc:
            log.warning("%s not advanced, other processes are late: %s", self._name, exc)

    async def changed(self, after: int, to: int) -> set[str] | None:
        try:
            lines = cast(list[bytes], await self._redis.lrange(self._name + _CHANGES, 0, -1))
        except _FAILURES as exc:
            log.warning("changes of %s unreadable: %s", self._name, exc)
            return None
        told = {int(number): name.decode() for number, name in map(bytes.split, lines)}
        named = {name for epoch, name in told.items() if after < epoch <= to}
        is_whole = sum(after < epoch <= to for epoch in told) == to - after
        return named if is_whole else None
