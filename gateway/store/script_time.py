"""What the counters' function costs inside Redis, by Redis's own count."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from redis import Redis


@dataclass
class ScriptTime:
    """Hold the mean time of a call, in microseconds, once the block is left."""

    us_per_call: float = 0.0


@contextlib.contextmanager
def script_time(redis_url: str) -> Iterator[ScriptTime]:
    """Measure the calls that anybody makes while the block runs."""
    taken = ScriptTime()
    with Redis.from_url(redis_url) as redis:
        before_us, before_calls = _counted(redis)
        yield taken
        after_us, after_calls = _counted(redis)
        taken.us_per_call = (after_us - before_us) / max(after_calls - before_calls, 1)


def _counted(redis: Redis) -> tuple[float, int]:
    stats = redis.info("commandstats").get("cmdstat_fcall", {"usec": 0, "calls": 0})
    return float(stats["usec"]), int(stats["calls"])
