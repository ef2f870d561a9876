"""Checks of limits while Redis is slow, as it is on a machine that does other things too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import unquote, urlsplit

import pytest

from gateway.domain.counters import CounterReply, Found, Settle
from gateway.domain.limits import Amounts
from gateway.errors import CountersUnavailable
from gateway.store.quota_counters import RedisQuotaCounters
from gateway.store.redis import connect_for_pipe
from gateway.store.redis_pipe import RedisPipe
from tests.faults.proxy import Fault, FaultProxy

pytestmark = pytest.mark.anyio

TIMEOUT_S, STALL_S = 0.05, 0.2
SETTLE = Settle("a", Amounts())


class Checked:
    """Counters behind a proxy; a first try has as long as a server's has by default."""

    def __init__(self, proxy: FaultProxy, pipe: RedisPipe) -> None:
        self.proxy, self.pipe = proxy, pipe
        self.counters = RedisQuotaCounters(pipe, patience_s=10)

    async def check(self) -> object:
        return (await self.counters.run([SETTLE])).epoch

    async def check_where_it_is_read(self) -> object:
        told: asyncio.Future[CounterReply | Exception] = asyncio.Future()
        if not self.counters.begin([SETTLE], told.set_result):
            return await self.check()
        reply = await told
        assert not isinstance(reply, Exception), reply
        return reply.epoch


@pytest.fixture
async def checked(redis_url: str) -> AsyncIterator[Checked]:
    async with FaultProxy(unquote(urlsplit(redis_url).path), None) as proxy:
        client = connect_for_pipe(proxy.redis_url(redis_url))
        pipe = RedisPipe(client, timeout_s=TIMEOUT_S)
        checked = Checked(proxy, pipe)
        await checked.counters.run([Found("e", 0)])
        yield checked
        await pipe.close()
        await client.aclose()


async def test_a_redis_that_does_not_run_for_a_while_refuses_nobody(checked: Checked) -> None:
    """Neither who asked before it nor who came meanwhile."""
    checks = []
    checked.proxy.fault = Fault(blackhole=True)
    for _ in range(20):
        checks += [asyncio.create_task(checked.check()) for _ in range(3)]
        checks += [asyncio.create_task(checked.check_where_it_is_read()) for _ in range(2)]
        await asyncio.sleep(STALL_S / 20)
    checked.proxy.fault = Fault()
    assert await asyncio.gather(*checks) == ["e"] * 100


async def test_counters_that_say_nothing_are_no_answer(checked: Checked) -> None:
    """Who does not wait for them is told so, once patience has ended."""
    checked.counters = RedisQuotaCounters(checked.pipe, patience_s=0.05)
    checked.proxy.fault = Fault(blackhole=True)
    told: asyncio.Future[CounterReply | Exception] = asyncio.Future()
    assert checked.counters.begin([SETTLE], told.set_result)
    assert isinstance(await told, CountersUnavailable)


async def test_a_server_that_lost_its_functions_is_given_them(checked: Checked) -> None:
    """The call that met it is answered."""
    await checked.pipe.call("FUNCTION", "FLUSH")
    assert await checked.check_where_it_is_read() == "e"


async def test_an_answer_that_cannot_be_read_is_told(
    checked: Checked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever began the call does not wait for ever, and the connection stays."""

    def refuse(ops: object, answer: object) -> CounterReply:
        raise ValueError("not of this form")

    monkeypatch.setattr("gateway.store.quota_counters.decode", refuse)
    told: asyncio.Future[CounterReply | Exception] = asyncio.Future()
    assert checked.counters.begin([SETTLE], told.set_result)
    assert isinstance(await asyncio.wait_for(told, 10), ValueError)
    assert await checked.pipe.call("PING")
