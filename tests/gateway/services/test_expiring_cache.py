"""The cache under authentication."""

from __future__ import annotations

from gateway.services.expiring_cache import ExpiringCache


def test_the_least_recently_used_goes_first() -> None:
    """At its bound the cache drops what was not read for longest."""
    cache: ExpiringCache[int] = ExpiringCache(max_entries=2, ttl_s=10)
    cache.put(b"a", 1, 0)
    cache.put(b"b", 2, 0)
    assert cache.get(b"a", 0) == 1
    cache.put(b"c", 3, 0)
    assert cache.get(b"b", 0) is None
    assert (cache.get(b"a", 0), cache.get(b"c", 0), len(cache)) == (1, 3, 2)


def test_lives_end_apart_within_the_jitter() -> None:
    """Entries of one moment do not all expire at one moment, and none outlives ttl + jitter."""
    cache: ExpiringCache[int] = ExpiringCache(max_entries=1000, ttl_s=10, jitter=0.1)
    for number in range(1000):
        cache.put(number.to_bytes(2), number, 0)
    alive = {
        at: sum(cache.get(n.to_bytes(2), at) is not None for n in range(1000))
        for at in (8.9, 10, 11)
    }
    assert alive[8.9] == 1000
    assert 0 < alive[10] < 1000
    assert alive[11] == 0
