"""Items that are read wait for room by their tenants' parts, and none for good."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import UUID

import pytest

from gateway.services.batches.worker_gate import ByteGate

pytestmark = pytest.mark.anyio

ACME, GLOBEX, *CROWD = [UUID(int=number) for number in range(12)]


async def entered(gate: ByteGate, tenant: UUID, size_bytes: int) -> Callable[[], None] | None:
    """Return what gives the room back, None where there is none yet."""
    try:
        async with asyncio.timeout(0.001):
            return await gate.enter(tenant, size_bytes)
    except TimeoutError:
        return None


async def test_a_tenant_has_a_quarter_and_the_next_waits_for_its_own() -> None:
    """What is over its part comes in as that leaves; another goes past it."""
    gate = ByteGate(400)
    first = await gate.enter(ACME, 60)
    waits = asyncio.create_task(gate.enter(ACME, 60))
    assert await entered(gate, GLOBEX, 60) is not None
    assert not waits.done()
    first()
    first()
    await waits


async def test_a_crowd_that_holds_all_it_gets_leaves_room_for_one_item() -> None:
    """Ten tenants leave a twentieth of it; who has nothing there has one item of that size in."""
    gate = ByteGate(400)
    for tenant in CROWD:
        while await entered(gate, tenant, 4):
            pass
    assert await entered(gate, ACME, 20) is not None
    assert await entered(gate, ACME, 1) is None


async def test_one_above_a_part_comes_in_where_it_has_nothing_there() -> None:
    """Beside others while it fits, and by itself however large it is."""
    gate = ByteGate(400)
    leave = await gate.enter(GLOBEX, 50)
    assert await entered(gate, ACME, 500) is None
    (await gate.enter(ACME, 350))()
    leave()
    (await gate.enter(ACME, 500))()
    assert await entered(gate, ACME, 100) is not None


async def test_who_leaves_as_its_turn_comes_takes_nothing() -> None:
    """A run that is cancelled while it waits, or just then, leaves the room to others."""
    gate = ByteGate(400)
    leave = await gate.enter(ACME, 100)
    early, late = (asyncio.create_task(gate.enter(ACME, 100)) for _ in range(2))
    await asyncio.sleep(0)
    early.cancel()
    await asyncio.sleep(0)
    leave()
    late.cancel()
    await asyncio.gather(early, late, return_exceptions=True)
    assert await entered(gate, ACME, 100) is not None
