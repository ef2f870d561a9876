"""Who waits for whom among those who want reports."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from uuid import UUID

import pytest

from gateway.errors import Overloaded, TenantLimited
from gateway.services.ledger.report_gate import ReportGate

pytestmark = pytest.mark.anyio

ACME, GLOBEX, INITECH, CO = (UUID(int=n) for n in (1, 2, 3, 4))


async def test_a_tenants_reports_wait_for_each_other() -> None:
    """Two of a tenant run; its third waits, another tenant's does not."""
    gate = ReportGate(wait_s=0.05, patience_s=0.1)
    async with AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(gate.running(ACME, CO))
        with pytest.raises(TenantLimited):
            await stack.enter_async_context(gate.running(ACME, CO))
        await stack.enter_async_context(gate.running(GLOBEX, CO))
        # Three in all: now it is nobody's own.
        with pytest.raises(Overloaded):
            await stack.enter_async_context(gate.running(INITECH, CO))
    async with gate.running(ACME, CO):
        pass


async def test_who_waits_has_the_next_place() -> None:
    """A report that ends lets the one that waited in, and nothing of it is refused."""
    gate = ReportGate(max_running_of_tenant=1, wait_s=5.0)
    order: list[str] = []

    async def report(name: str) -> None:
        async with gate.running(ACME, CO):
            order.append(name)

    async with gate.running(ACME, CO):
        waiting = [asyncio.create_task(report(name)) for name in "ab"]
        await asyncio.sleep(0.01)
        assert order == []
    await asyncio.gather(*waiting)
    assert order == ["a", "b"]


async def test_a_tenants_queue_is_bounded() -> None:
    """Beyond eight that wait, one is refused at once."""
    gate = ReportGate(wait_s=30.0)
    tasks = [asyncio.create_task(_hold(gate)) for _ in range(10)]
    await asyncio.sleep(0.01)
    async with asyncio.timeout(1):
        with pytest.raises(TenantLimited):
            await _hold(gate)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    async with gate.running(ACME, CO), gate.running(ACME, CO):
        pass


async def test_a_free_place_goes_to_who_had_the_least() -> None:
    """Tenants that hold all places and wait for more do not keep out one that comes later."""
    clock = _Clock()
    gate = ReportGate(clock=clock)
    heavy = [UUID(int=n) for n in range(10, 16)]
    ends = {whose: asyncio.Event() for whose in (*heavy, ACME)}
    begun: list[UUID] = []

    async def report(whose: UUID) -> None:
        async with gate.running(whose, CO):
            begun.append(whose)
            await ends[whose].wait()

    tasks = [asyncio.create_task(report(whose)) for whose in heavy[:3]]
    await _settle()
    clock.now += 30.0
    for whose in heavy[:3]:
        ends[whose].set()
    await asyncio.gather(*tasks)
    for whose in heavy[:3]:
        ends[whose].clear()
    # The other three run, and those that had 30 seconds each wait before it comes.
    waiting = [asyncio.create_task(report(whose)) for whose in (*heavy[3:], *heavy[:3], ACME)]
    await _settle()
    assert begun[3:] == heavy[3:]
    ends[heavy[3]].set()
    await _settle()
    assert begun[-1] == ACME
    # What they had fades: an hour later it is again who came first.
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    clock.now += 3_600.0
    assert gate._used_s(heavy[0], clock.now) < 1e-9
    async with gate.running(ACME, CO), gate.running(ACME, CO), gate.running(GLOBEX, CO):
        pass


async def test_tenants_of_one_organisation_have_their_turn_as_one() -> None:
    """Twenty of them that never had a report wait before another's first, which is next."""
    clock = _Clock()
    gate = ReportGate(max_running=1, clock=clock)
    begun: list[int] = []

    async def report(number: int, organisation_id: UUID) -> None:
        async with gate.running(UUID(int=number), organisation_id):
            begun.append(number)
            clock.now += 10.0
            await asyncio.sleep(0)

    others = [asyncio.create_task(report(100 + n, CO)) for n in range(20)]
    await asyncio.gather(*others, asyncio.create_task(report(1, UUID(int=5))))
    assert begun.index(1) == 1
    assert sorted(begun[2:]) == list(range(101, 120))


async def test_the_last_place_is_for_who_has_none() -> None:
    """Two tenants with a report each leave the third place, and one alone has two."""
    gate = ReportGate(wait_s=0.05, patience_s=0.1)
    async with gate.running(ACME, CO), gate.running(GLOBEX, CO):
        with pytest.raises(Overloaded):
            async with gate.running(ACME, CO):
                pass
        async with gate.running(INITECH, CO):
            pass
    async with gate.running(ACME, CO), gate.running(ACME, CO), gate.running(GLOBEX, CO):
        pass


async def test_who_leaves_while_waiting_takes_no_place() -> None:
    """A caller that is gone before its place is free, or just as it is, holds none."""
    gate = ReportGate(max_running=1)
    for is_free in (False, True):
        async with gate.running(ACME, CO):
            waiting = asyncio.create_task(_hold(gate, GLOBEX))
            await _settle()
            if not is_free:
                waiting.cancel()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        async with asyncio.timeout(1), gate.running(INITECH, CO):
            pass


class _Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def _hold(gate: ReportGate, whose: UUID = ACME) -> None:
    async with gate.running(whose, CO):
        await asyncio.Event().wait()
