"""What gateways tell each other, in one hash of Redis a topic, as the rates of a model are.

One script puts down what a replica says and returns what the others said lately, by the server's
clock; what is older is dropped by whoever comes next. Its cost is the number of replicas, each with
a bounded number of tenants, whatever a tenant sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.errors import CountersUnavailable

# ARGV: the replica, for how long what it says holds, ms, and that.
_EXCHANGE: Final = """
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local told, others = redis.call('HGETALL', KEYS[1]), {}
for i = 1, #told, 2 do
  local at, said = string.match(told[i + 1], '^(%d+) (.*)$')
  local age = now - tonumber(at or '0')
  if at == nil or age > tonumber(ARGV[2]) or age < -tonumber(ARGV[2]) then
    redis.call('HDEL', KEYS[1], told[i])
  elseif told[i] ~= ARGV[1] then
    others[#others + 1] = said
  end
end
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f ', now) .. ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return others
"""


class RedisReplicaRates:
    """Implement `ReplicaRates`."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def exchange(
        self, topic: str, replica: str, said: bytes, *, life_s: float
    ) -> Sequence[bytes]:
        key, life_ms = f"sluice:{topic}", round(life_s * 1000)
        try:
            others: list[bytes] = await self._redis.eval(_EXCHANGE, 1, key, replica, life_ms, said)
        except (RedisError, OSError, RuntimeError) as exc:
            raise CountersUnavailable(detail=repr(exc)) from exc
        return others
