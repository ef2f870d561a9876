"""How often may be tried: in one process, in all, and while Redis is away."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence

import pytest

from gateway.domain.login_rate import Bucket
from gateway.errors import CountersUnavailable, LoginLimited
from gateway.services.sign_in.attempts import (
    ACCOUNT_BURST,
    ACCOUNT_INTERVAL_S,
    ADDRESS_BURST,
    Attempts,
)
from gateway.store import Store

pytestmark = pytest.mark.anyio


class Away:
    """Stand for a Redis that does not answer."""

    async def take(self, buckets: Sequence[Bucket]) -> float:
        raise CountersUnavailable

    async def forget(self, bucket: Bucket) -> None:
        raise CountersUnavailable

    async def learn(self, place: str, life_s: float) -> None:
        raise CountersUnavailable

    async def knows(self, place: str) -> bool:
        raise CountersUnavailable


class Elsewhere:
    """Stand for a Redis that lets everybody try."""

    async def take(self, buckets: Sequence[Bucket]) -> float:
        return 0.0

    async def forget(self, bucket: Bucket) -> None:
        pass

    async def learn(self, place: str, life_s: float) -> None:
        pass

    async def knows(self, place: str) -> bool:
        return False


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


async def test_without_redis_a_process_counts_for_itself() -> None:
    """The limits hold, with the time to wait, and give way as time passes."""
    clock = Clock()
    attempts = Attempts(Away(), clock)
    for number in range(ACCOUNT_BURST):
        await attempts.admit(f"192.0.2.{number}", "ann")
    with pytest.raises(LoginLimited) as limited:
        await attempts.admit("192.0.2.99", "ann")
    assert limited.value.retry_after_s == pytest.approx(ACCOUNT_INTERVAL_S)
    clock.now += ACCOUNT_INTERVAL_S
    await attempts.admit("192.0.2.99", "ann")
    with pytest.raises(LoginLimited):
        await attempts.admit("192.0.2.98", "ann")


async def test_a_name_of_any_length_takes_the_room_of_a_name() -> None:
    """What strangers send as names is kept for as long as it is counted, in bytes that are few."""
    attempts = Attempts(Elsewhere(), Clock())
    tracemalloc.start()
    try:
        for number in range(100):
            name = f"{number:03}" + "x" * 200_000
            await attempts.admit(f"192.0.2.{number}", name)
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_bytes < 1_000_000


async def test_a_success_begins_the_account_anew_and_not_the_address(store: Store) -> None:
    """Who signs in may mistype again; who guesses others between own sign-ins is held up."""
    attempts, elsewhere = Attempts(store.login_attempts), Attempts(store.login_attempts)
    for _ in range(ADDRESS_BURST):
        await attempts.admit("192.0.2.1", "eve")
        await attempts.succeeded("eve", "192.0.2.1")
    for process in (attempts, elsewhere):
        with pytest.raises(LoginLimited):
            await process.admit("192.0.2.1", "ann")
        await process.admit("192.0.2.2", "eve")


async def test_a_stranger_keeps_nobody_out_of_where_they_sign_in_from(store: Store) -> None:
    """Who takes all attempts of an account leaves its owner those from a known place, so many."""
    here, elsewhere = Attempts(store.login_attempts), Attempts(store.login_attempts)
    await here.admit("192.0.2.1", "ann")
    await here.succeeded("ann", "192.0.2.1")
    for number in range(ACCOUNT_BURST):
        await here.admit(f"198.51.100.{number}", "ann")
    for process in (here, elsewhere):
        for address in ("198.51.100.99", "192.0.2.2"):
            with pytest.raises(LoginLimited):
                await process.admit(address, "ann")
        await process.admit("192.0.2.1", "ann")
    # It is the place of that account alone.
    for number in range(ACCOUNT_BURST):
        await here.admit(f"198.51.100.{number}", "bob")
    with pytest.raises(LoginLimited):
        await here.admit("192.0.2.1", "bob")


async def test_a_known_place_has_a_rate_too(store: Store) -> None:
    """Whoever guesses from there has as many attempts as an account has, beside its own."""
    attempts = Attempts(store.login_attempts)
    await attempts.succeeded("ann", "192.0.2.1")
    for number in range(ACCOUNT_BURST):
        await attempts.admit(f"198.51.100.{number}", "ann")
    for _ in range(ACCOUNT_BURST):
        await attempts.admit("192.0.2.1", "ann")
    with pytest.raises(LoginLimited):
        await attempts.admit("192.0.2.1", "ann")
    [place] = [key async for key in store.redis.scan_iter("sluice:login:place:*")]
    assert 29 * 86_400_000 < await store.redis.pttl(place) <= 30 * 86_400_000


async def test_what_is_kept_is_bounded_whatever_strangers_send(store: Store) -> None:
    """Addresses and accounts share a fixed number of buckets, which go by themselves."""
    made = [Bucket("account", f"a{number}", 10, 30.0) for number in range(200)]
    for bucket in made:
        assert await store.login_attempts.take([bucket]) == 0
    keys = [key async for key in store.redis.scan_iter("sluice:login:*")]
    assert 190 <= len(keys) <= 200
    for key in keys:
        assert 0 < await store.redis.pttl(key) <= 60_000
    assert len({store.login_attempts._key(bucket) for bucket in made}) <= 1 << 16
