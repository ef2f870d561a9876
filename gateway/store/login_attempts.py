"""The rates of sign-ins in Redis, for all gateways together.

A bucket is one of a fixed number by the hash of whom it counts, so that what is kept is bounded
whatever strangers send. GCRA, with the server's clock: a bucket is the time at which its next
attempt is due, were the rate kept; it is forgotten when that is past. All buckets of an attempt are
taken, or none. From where somebody has signed in is one key each, which no stranger adds.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.credentials import Secrets
from gateway.domain.login_rate import Bucket
from gateway.errors import CountersUnavailable

_NUM_BUCKETS: Final = 1 << 16
# ARGV: of each key its burst and the time between two, ms. Returns how long to wait, ms; 0: taken.
_TAKE: Final = """
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local wait, due = 0, {}
for i, key in ipairs(KEYS) do
  due[i] = math.max(now, tonumber(redis.call('GET', key) or '0'))
  wait = math.max(wait, due[i] - now - (ARGV[2 * i - 1] - 1) * ARGV[2 * i])
end
if wait > 0 then return wait end
for i, key in ipairs(KEYS) do
  local next = due[i] + ARGV[2 * i]
  redis.call('SET', key, string.format('%.0f', next), 'PX', string.format('%.0f', next - now))
end
return 0
"""


class RedisLoginAttempts:
    """Implement `LoginAttempts`."""

    def __init__(self, redis: Redis, secrets: Secrets) -> None:
        self._redis = redis
        self._secrets = secrets

    async def take(self, buckets: Sequence[Bucket]) -> float:
        rates = [
            number
            for bucket in buckets
            for number in (bucket.burst, round(bucket.interval_s * 1000))
        ]
        keys = [self._key(bucket) for bucket in buckets]
        try:
            wait_ms = await self._redis.eval(_TAKE, len(keys), *keys, *rates)
        except (RedisError, OSError, RuntimeError) as exc:
            raise CountersUnavailable(detail=repr(exc)) from exc
        return float(wait_ms) / 1000

    async def forget(self, bucket: Bucket) -> None:
        try:
            await self._redis.delete(self._key(bucket))
        except (RedisError, OSError, RuntimeError) as exc:
            raise CountersUnavailable(detail=repr(exc)) from exc

    async def learn(self, place: str, life_s: float) -> None:
        try:
            await self._redis.set(self._place(place), 1, px=round(life_s * 1000))
        except (RedisError, OSError, RuntimeError) as exc:
            raise CountersUnavailable(detail=repr(exc)) from exc

    async def knows(self, place: str) -> bool:
        try:
            return await self._redis.get(self._place(place)) is not None
        except (RedisError, OSError, RuntimeError) as exc:
            raise CountersUnavailable(detail=repr(exc)) from exc

    def _key(self, bucket: Bucket) -> str:
        """Name a bucket, so that nobody without the root secret knows who shares it with whom."""
        number = int.from_bytes(self._digest(f"{bucket.kind}\0{bucket.whom}")[:8])
        return f"sluice:login:{bucket.kind}:{number % _NUM_BUCKETS}"

    def _place(self, place: str) -> str:
        """Name a place. Only who has signed in from there adds one, so that none is shared."""
        digest = self._digest(f"place\0{place}")
        return f"sluice:login:place:{digest.hex()[:32]}"

    def _digest(self, text: str) -> bytes:
        whom = text.encode("utf-8", "surrogatepass")
        return hmac.digest(self._secrets.session_pepper, whom, "sha256")
