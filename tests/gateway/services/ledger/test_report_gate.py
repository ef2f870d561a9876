"""Who waits for whom among those who want reports."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from uuid import UUID

import pytest

from gateway.errors import Overloaded, TenantLimited
from gateway.services.ledger.report_gate import ReportGate

pytestmark = pytest.mark.anyio

ACME, GLOBEX, INITECH = (UUID(int=n) for n in (1, 2, 3))


async def test_a_tenants_reports_wait_for_each_other() -> None:
    """Two of a tenant run; its third waits, another tenant's does not."""
    gate = ReportGate(wait_s=0.05)
    async with AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(gate.running(ACME))
        with pytest.raises(TenantLimited):
            await stack.enter_async_context(gate.running(ACME))
        await stack.enter_async_context(gate.running(GLOBEX))
        # Three in all: now it is nobody's own.
        with pytest.raises(Overloaded):
            await stack.enter_async_context(gate.running(INITECH))
    async with gate.running(ACME):
        pass
    assert gate._of_tenant == {}


async def test_who_waits_has_the_next_place() -> None:
    """A report that ends lets the one that waited in, and nothing of it is refused."""
    gate = ReportGate(max_running_of_tenant=1, wait_s=5.0)
    order: list[str] = []

    async def report(name: str) -> None:
        async with gate.running(ACME):
            order.append(name)

    async with gate.running(ACME):
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
    async with gate.running(ACME), gate.running(ACME):
        pass


async def _hold(gate: ReportGate) -> None:
    async with gate.running(ACME):
        await asyncio.Event().wait()
