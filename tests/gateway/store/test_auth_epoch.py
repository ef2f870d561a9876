"""The epoch of keys and tenants in a real Valkey: it moves for everybody, and fails open."""

from __future__ import annotations

import logging

import pytest

from gateway.store.redis import RedisAuthEpoch, connect_redis
from tests.gateway.store.closed_unseen import ClosesUnseen, closing_client

pytestmark = pytest.mark.anyio


async def test_it_moves_for_every_process(redis_url: str) -> None:
    """What one advances the others read, and without it there is a first one."""
    ours, theirs = connect_redis(redis_url), connect_redis(redis_url)
    assert await RedisAuthEpoch(theirs).current() == 0
    await RedisAuthEpoch(ours).advance()
    assert await RedisAuthEpoch(theirs).current() == 1
    await ours.aclose()
    await theirs.aclose()


async def test_it_tells_what_was_changed(redis_url: str) -> None:
    """Others read the names of what moved it, and no names where one of them was not told or is
    too long ago.
    """
    client = connect_redis(redis_url)
    epoch = RedisAuthEpoch(client)
    for name in ("kid-1", "kid-2", "kid-3"):
        await epoch.advance(name)
    assert await epoch.changed(1, 3) == {"kid-2", "kid-3"}
    await epoch.advance()
    await epoch.advance("kid-5")
    assert await epoch.changed(4, 5) == {"kid-5"}
    assert await epoch.changed(2, 5) is None
    for number in range(256):
        await epoch.advance(f"later-{number}")
    assert await epoch.changed(4, 261) is None
    assert len(await epoch.changed(5, 261) or ()) == 256
    assert await epoch.changed(5, 10**9) is None
    await client.aclose()


async def test_a_redis_that_is_away_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody knows the epoch then, and a revocation is done all the same."""
    away = connect_redis("unix:///nowhere/valkey.sock")
    epoch = RedisAuthEpoch(away)
    assert await epoch.current() is None
    with caplog.at_level(logging.WARNING):
        await epoch.advance()
    assert "other processes are late" in caplog.text
    assert await epoch.changed(0, 1) is None
    await away.aclose()


async def test_a_transport_that_closed_unseen_is_no_error(redis_url: str) -> None:
    """Whatever the event loop calls it; the next call connects again."""
    async with closing_client(redis_url) as client:
        epoch = RedisAuthEpoch(client)
        await epoch.advance()
        ClosesUnseen.is_closed = True
        assert await epoch.current() is None
        await epoch.advance()
        ClosesUnseen.is_closed = False
        assert await epoch.current() == 1
