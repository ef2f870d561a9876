"""What the counters' function costs inside Redis, by Redis's own count."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from redis import Redis


@dataclass
class ScriptTime:
    """Hold the time of all calls together, in microseconds, once the block is left."""

    us: float = 0.0


@contextlib.contextmanager
def script_time(redis_url: str) -> Iterator[ScriptTime]:
    """Measure the calls that anybody makes while the block runs."""
    taken = ScriptTime()
    with Redis.from_url(redis_url) as redis:
        before_us = _counted_us(redis)
        yield taken
        taken.us = _counted_us(redis) - before_us


def _counted_us(redis: Redis) -> float:
    return float(redis.info("commandstats").get("cmdstat_fcall", {"usec": 0})["usec"])
