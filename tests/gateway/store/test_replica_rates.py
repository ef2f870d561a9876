"""What replicas tell each other, over a real Valkey."""

from __future__ import annotations

import asyncio

import pytest

from gateway.errors import CountersUnavailable
from gateway.store import Store
from gateway.store.redis import connect_redis
from gateway.store.replica_rates import RedisReplicaRates

pytestmark = pytest.mark.anyio


async def test_others_are_heard_while_what_they_said_holds(store: Store) -> None:
    """Each hears the others of its model, bytes as they are, and nobody who was silent too long."""
    rates = RedisReplicaRates(store.redis)
    assert await rates.exchange("rates:m", "a", b"1 \x00\n\xff", life_s=5) == []
    assert await rates.exchange("rates:m", "b", b"2", life_s=5) == [b"1 \x00\n\xff"]
    assert await rates.exchange("rates:n", "c", b"3", life_s=5) == []
    assert sorted(await rates.exchange("rates:m", "c", b"3", life_s=5)) == [b"1 \x00\n\xff", b"2"]
    await asyncio.sleep(0.03)
    assert await rates.exchange("rates:m", "a", b"4", life_s=0.02) == []
    assert await store.redis.hkeys("sluice:rates:m") == [b"a"]
    assert 0 < await store.redis.pttl("sluice:rates:m") <= 20


async def test_a_field_of_somebody_else_is_dropped(store: Store) -> None:
    """What is no time and no saying, or of another clock, goes and is not heard."""
    rates = RedisReplicaRates(store.redis)
    await store.redis.hset("sluice:rates:m", mapping={"x": b"junk", "y": b"99999999999999 1"})
    assert await rates.exchange("rates:m", "a", b"1", life_s=5) == []
    assert await store.redis.hkeys("sluice:rates:m") == [b"a"]


async def test_redis_away_is_said() -> None:
    """Who asks is told that nothing is known."""
    redis = connect_redis("redis://127.0.0.1:1/0")
    with pytest.raises(CountersUnavailable):
        await RedisReplicaRates(redis).exchange("rates:m", "a", b"", life_s=1)
    await redis.aclose()
