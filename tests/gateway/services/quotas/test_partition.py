"""A gateway that is cut off from the counters for longer than its leases; others are not.

Leases are a second and a half here instead of half a minute, and all that hangs on them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from redis.asyncio import Redis

from gateway.domain.counters import Look, Seen
from gateway.domain.usage import Outcome
from gateway.errors import CountersUnavailable, TenantLimited
from gateway.services.quotas import ask, keeper, lease, service
from gateway.services.quotas.compile import compile_limits
from gateway.services.quotas.keeper import QuotaKeeper
from gateway.store import Store
from gateway.store.quota_counters import RedisQuotaCounters
from gateway.store.redis import connect_for_pipe
from gateway.store.redis_pipe import RedisPipe
from tests.counted import counted
from tests.faults.proxy import Fault, FaultProxy
from tests.gateway.services.quotas.fleet import PROMPT, Gateway, Tenant, gateway

pytestmark = pytest.mark.anyio

CAP, GRANT, LEASE_S = 3000, 256, 1.5


@dataclass
class Partition:
    """Two gateways, the first of which reaches Valkey through a proxy."""

    tenant: Tenant
    cut: Gateway
    other: Gateway
    proxy: FaultProxy
    redis_url: str

    async def know_each_other(self) -> None:
        """Wait until both have heard of the other."""
        while {self.cut.link.num_gateways, self.other.link.num_gateways} != {2}:
            await asyncio.sleep(0.01)

    async def forget(self) -> None:
        """Make the counters forget everything."""
        async with Redis.from_url(self.redis_url) as redis:
            await redis.flushall()

    async def used_and_held(self) -> tuple[int, int]:
        """Return how the cap stands."""
        quotas = (await self.tenant.principal()).quotas
        [answer] = await self.other.link.ask(Look(compile_limits(quotas, self.other.link.now_s())))
        assert isinstance(answer, Seen)
        [seen] = answer.limits
        return seen.used, seen.held

    async def is_to_be_loaded(self) -> None:
        """Wait until the counters have been told that they may lack something."""
        scope = f"sluice:q:tenant:{(await self.tenant.principal()).tenant_id}"
        async with Redis.from_url(self.redis_url) as redis:
            while counted(await redis.get(scope))["tokens.day:g"] >= 0:
                await asyncio.sleep(0.01)

    async def serve_by_other(self) -> bool:
        """Have the other gateway serve one request, if it is let through."""
        try:
            await self.other.serve(190)
        except (TenantLimited, CountersUnavailable):
            return False
        return True

    async def use_up(self, seconds: float) -> int:
        """Have the other gateway serve until nothing fits, for a while at least.

        No sample is above the cap.
        """
        used, is_full, ends_s = 0, False, asyncio.get_running_loop().time() + seconds
        while not is_full or asyncio.get_running_loop().time() < ends_s:
            try:
                used += await self.other.serve(190)
                is_full = False
            except (TenantLimited, CountersUnavailable) as exc:
                is_full = isinstance(exc, TenantLimited)
                await asyncio.sleep(0.05)
            assert sum(await self.used_and_held()) <= CAP
        return used

    async def settled(self) -> int:
        """Wait until nothing is held any more and all is billed; return what is used."""
        for each in (self.cut, self.other):
            assert await each.writer.flush(10)
        for _ in range(400):
            used, held = await self.used_and_held()
            if held == 0 and used == await self.tenant.billed():
                return used
            await asyncio.sleep(0.02)
        raise AssertionError((used, held, await self.tenant.billed()))


@pytest.fixture
async def partition(
    store: Store, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Partition]:
    """Run both, with their keepers."""
    for module in (ask, keeper, lease, service):
        monkeypatch.setattr(module, "LEASE_US", int(LEASE_S * 1e6))
    monkeypatch.setattr(keeper, "_RENEW_S", 0.2)
    for name, share in (("_VOUCH_S", 0.5), ("_GIVE_UP_S", 0.7), ("_OVERDUE_S", 0.9)):
        if hasattr(lease, name):
            monkeypatch.setattr(lease, name, share * LEASE_S)
    async with FaultProxy(unquote(urlsplit(redis_url).path), None) as proxy:
        client = connect_for_pipe(proxy.redis_url(redis_url))
        pipe, tenant = RedisPipe(client, timeout_s=0.05), Tenant(store)
        await tenant.set(daily_tokens=CAP)
        async with (
            gateway(tenant, tmp_path / "a", RedisQuotaCounters(pipe), lease_s=LEASE_S) as cut,
            gateway(tenant, tmp_path / "b", lease_s=LEASE_S) as other,
            _kept(cut),
            _kept(other),
        ):
            yield Partition(tenant, cut, other, proxy, redis_url)
            proxy.fault = Fault()
        await pipe.close()
        await client.aclose()


def _kept(one: Gateway):  # type: ignore[no-untyped-def]  # a context manager of the keeper's
    quick = QuotaKeeper(
        one.quotas,
        one.tenant.store.ledger,
        one.metrics,
        remind=one.remind,
        tick_s=0.1,
        sweep_s=0.1,
    )
    return quick.running()


async def test_what_ended_beyond_the_counters_is_not_let_go(partition: Partition) -> None:
    """It was billed: whoever reaps finds that in the ledger, and lets go of what it did not use."""
    running = [await partition.cut.begin(GRANT) for _ in range(5)]
    partition.proxy.fault = Fault(blackhole=True)
    for one, run in running:
        run.num_used_tokens = 200
        one.settle(Outcome.COMPLETED)
    used = await partition.use_up(2 * LEASE_S)
    partition.proxy.fault = Fault()
    used += 5 * (PROMPT + 200)
    assert await partition.settled() == used <= CAP


async def test_what_runs_beyond_the_counters_is_vouched_for(partition: Partition) -> None:
    """All that it was granted stays its own until it ends, and all that it used is billed."""
    running = [await partition.cut.begin(1000) for _ in range(5)]
    partition.proxy.fault = Fault(blackhole=True)
    with pytest.raises(CountersUnavailable):
        await partition.cut.begin(10)
    used = await partition.use_up(2 * LEASE_S)
    for one, run in running:
        await partition.cut.generate(one, run)
        one.settle(Outcome.COMPLETED)
        assert run.num_used_tokens == GRANT
        used += PROMPT + GRANT
    partition.proxy.fault = Fault()
    assert await partition.settled() == used <= CAP


async def test_counters_that_forgot_count_what_waits_for_the_ledger(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway tells them, for which the ledger is away while the other loads them from it."""
    partition.cut.ledger_answers.clear()
    used = sum([await partition.cut.serve(190) for _ in range(5)])
    await partition.cut.link.flush()
    await partition.know_each_other()
    await partition.forget()
    used += await partition.use_up(1.0)
    partition.cut.ledger_answers.set()
    assert await partition.settled() == used <= CAP


async def test_what_comes_into_the_ledger_after_the_counters_were_loaded_is_counted(
    partition: Partition,
) -> None:
    """Its gateway was cut off from both for so long that nobody waited for it any more."""
    partition.cut.ledger_answers.clear()
    used = sum([await partition.cut.serve(190) for _ in range(5)])
    await partition.cut.link.flush()
    await partition.know_each_other()
    partition.proxy.fault = Fault(blackhole=True)
    await partition.forget()
    while not await partition.serve_by_other():
        await asyncio.sleep(0.05)
    used += PROMPT + 190
    partition.cut.ledger_answers.set()
    assert await partition.cut.writer.flush(10)
    partition.proxy.fault = Fault()
    await partition.is_to_be_loaded()
    used += await partition.use_up(0)
    assert await partition.settled() == used <= CAP


async def test_counters_that_forgot_wait_for_who_is_cut_off(partition: Partition) -> None:
    """It vouches in the ledger for what it holds before anybody else gets some of it."""
    running = [await partition.cut.begin(1000) for _ in range(5)]
    await partition.know_each_other()
    partition.proxy.fault = Fault(blackhole=True)
    await partition.forget()
    used = await partition.use_up(2 * LEASE_S)
    for one, run in running:
        await partition.cut.generate(one, run)
        one.settle(Outcome.COMPLETED)
        used += PROMPT + run.num_used_tokens
    partition.proxy.fault = Fault()
    assert await partition.settled() == used <= CAP


async def test_who_ends_less_than_it_vouched_for_gives_the_rest_back(partition: Partition) -> None:
    """The counters were loaded with all of it: they learn what it was."""
    running = [await partition.cut.begin(1000) for _ in range(5)]
    await partition.know_each_other()
    partition.proxy.fault = Fault(blackhole=True)
    await partition.forget()
    used = await partition.use_up(2 * LEASE_S)
    for one, run in running:
        run.num_used_tokens = 50
        one.settle(Outcome.CANCELLED)
    partition.proxy.fault = Fault()
    assert await partition.settled() == used + 5 * (PROMPT + 50) <= CAP


async def test_who_comes_back_holds_once_what_it_vouched_for(partition: Partition) -> None:
    """Counters that forgot have it from the ledger by then, as used, and others the rest."""
    running = [await partition.cut.begin(1000) for _ in range(5)]
    await partition.know_each_other()
    partition.proxy.fault = Fault(blackhole=True)
    await partition.forget()
    used = await partition.use_up(2 * LEASE_S)
    assert used > CAP - 5 * (PROMPT + GRANT) - 200
    partition.proxy.fault = Fault()
    used += await partition.use_up(LEASE_S)
    for one, run in running:
        await partition.cut.generate(one, run)
        one.settle(Outcome.COMPLETED)
        assert run.num_used_tokens >= GRANT
        used += PROMPT + run.num_used_tokens
    assert await partition.settled() == used <= CAP


async def test_counters_that_forget_twice_hold_once_what_was_vouched_for(
    partition: Partition,
) -> None:
    """The ledger has it still when they are loaded again, while it is held."""
    running = [await partition.cut.begin(GRANT) for _ in range(5)]
    partition.proxy.fault = Fault(blackhole=True)
    used = await partition.use_up(0.8 * LEASE_S)
    partition.proxy.fault = Fault()
    await partition.know_each_other()
    await partition.forget()
    used += await partition.use_up(2 * LEASE_S)
    for one, run in running:
        run.num_used_tokens = GRANT
        one.settle(Outcome.COMPLETED)
        used += PROMPT + GRANT
    assert await partition.settled() == used <= CAP


async def test_what_ended_and_is_held_still_is_counted_once_by_who_loads(
    partition: Partition,
) -> None:
    """Its bill is in the ledger, and the counters have not heard of its end."""
    running = [await partition.cut.begin(GRANT) for _ in range(5)]
    used = await partition.use_up(0.3 * LEASE_S)
    assert used > CAP - 5 * (PROMPT + GRANT) - 200
    await partition.know_each_other()
    await partition.forget()
    while (await partition.used_and_held())[1] < 5 * (PROMPT + GRANT):
        await asyncio.sleep(0.01)
    partition.proxy.fault = Fault(blackhole=True)
    for one, run in running:
        run.num_used_tokens = 200
        one.settle(Outcome.COMPLETED)
    assert await partition.cut.writer.flush(10)
    used += 5 * (PROMPT + 200) + await partition.use_up(LEASE_S)
    partition.proxy.fault = Fault()
    assert await partition.settled() == used <= CAP


async def test_who_comes_back_too_late_and_vouched_for_nothing_has_lost_it(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counters that forgot have given it to others: it ends, and nobody is billed for it."""
    monkeypatch.setattr(lease, "_VOUCH_S", lease._OVERDUE_S)
    running = [await partition.cut.begin(1000) for _ in range(5)]
    await partition.know_each_other()
    partition.proxy.fault = Fault(blackhole=True)
    await partition.forget()
    used = await partition.use_up(2 * LEASE_S)
    assert used > CAP - 200
    partition.proxy.fault = Fault()
    used += await partition.use_up(LEASE_S)
    for one, run in running:
        assert one.is_lost
        assert one.stop_causes == {0: "lease_lost"}
        run.num_used_tokens = 90
        one.settle(Outcome.COMPLETED)
    assert await partition.settled() == used <= CAP
