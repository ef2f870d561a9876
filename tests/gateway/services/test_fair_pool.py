"""Threads that tenants share."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from uuid import UUID

import pytest

from gateway.errors import Overloaded, TenantLimited
from gateway.services.fair_pool import FairPool

pytestmark = pytest.mark.anyio

ACME, GLOBEX, INITECH = UUID(int=1), UUID(int=2), UUID(int=3)


class Work:
    """Take as long as the test says, in a time of its own, and note who ran in what order."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self._now_s = threading.local()
        self.gate = threading.Event()

    def clock(self) -> float:
        return float(getattr(self._now_s, "value", 0.0))

    def of(self, name: str, took_s: float = 1.0) -> Callable[[], str]:
        def run() -> str:
            # Not for ever: a thread that waits keeps a process whose test has failed.
            self.gate.wait(10)
            self._now_s.value = self.clock() + took_s
            self.ran.append(name)
            return name

        return run


async def _settle(*tasks: asyncio.Task[str]) -> None:
    """Let tasks come to where they wait."""
    for _ in range(2 * len(tasks) + 2):
        await asyncio.sleep(0)


async def test_it_returns_what_work_returns_or_raises() -> None:
    """The caller gets its own result, or its own failure."""
    pool = FairPool()
    assert await pool.run(ACME, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await pool.run(ACME, lambda: 1 // 0)
    assert await pool.run(ACME, lambda: threading.current_thread().name) != "MainThread"
    pool.close()


async def test_a_tenants_thousand_delay_another_by_what_runs() -> None:
    """Whoever comes while a queue is long is next once a thread is free."""
    work = Work()
    pool = FairPool(1, clock=work.clock)
    theirs = [asyncio.create_task(pool.run(ACME, work.of(f"a{n}"))) for n in range(6)]
    await _settle(*theirs)
    mine = asyncio.create_task(pool.run(GLOBEX, work.of("g")))
    await _settle(mine)
    work.gate.set()
    await asyncio.gather(*theirs, mine)
    assert work.ran.index("g") == 1
    pool.close()


async def test_many_tenants_of_one_owner_delay_another_by_what_runs() -> None:
    """An organisation has one turn, however many of its tenants wait, and they take turns in it."""
    work, owner = Work(), UUID(int=100)
    pool = FairPool(
        1, clock=work.clock, owner_of=lambda one: owner if one.int in range(10, 20) else one
    )
    theirs = [
        asyncio.create_task(pool.run(UUID(int=tenant), work.of(f"{tenant}")))
        for tenant in range(10, 14)
        for _ in range(3)
    ]
    await _settle(*theirs)
    mine = [asyncio.create_task(pool.run(GLOBEX, work.of("g"))) for _ in range(3)]
    await _settle(*mine)
    work.gate.set()
    await asyncio.gather(*theirs, *mine)
    assert [at for at, name in enumerate(work.ran) if name == "g"] == [1, 3, 5]
    rounds = [name for name in work.ran if name != "g"]
    assert all(set(rounds[at : at + 4]) == {"10", "11", "12", "13"} for at in (0, 4, 8))
    pool.close()


async def test_threads_are_shared_by_time_and_not_by_number() -> None:
    """A tenant whose work takes three times as long has a third as much of it done."""
    work = Work()
    pool = FairPool(1, clock=work.clock)
    tasks = [
        asyncio.create_task(pool.run(tenant, work.of(name, took_s)))
        for tenant, name, took_s in ((ACME, "a", 3.0), (GLOBEX, "g", 1.0))
        for _ in range(12)
    ]
    await _settle(*tasks)
    work.gate.set()
    await asyncio.gather(*tasks)
    assert [work.ran[:12].count(name) for name in "ag"] == [3, 9]
    pool.close()


async def test_a_tenant_leaves_a_thread_to_others() -> None:
    """While it has one running, and more that waits, another's work begins at once."""
    work, other = Work(), Work()
    pool = FairPool(2, clock=work.clock)
    first = asyncio.create_task(pool.run(ACME, other.of("a", 0.0)))
    tasks = [asyncio.create_task(pool.run(ACME, work.of("a", 0.0))) for _ in range(3)]
    await _settle(first, *tasks)
    work.gate.set()
    await asyncio.wait_for(pool.run(GLOBEX, work.of("g", 0.0)), 5)
    assert work.ran == ["g"]
    other.gate.set()
    await asyncio.gather(first, *tasks)
    assert work.ran == ["g", "a", "a", "a"]
    pool.close()


async def test_nobody_saves_time_up() -> None:
    """A tenant that was away for long shares with who was not, and does not go before it."""
    work = Work()
    work.gate.set()
    pool = FairPool(1, clock=work.clock)
    for _ in range(20):
        await pool.run(ACME, work.of("a"))
    work.ran.clear()
    work.gate.clear()
    tasks = [
        asyncio.create_task(pool.run(tenant, work.of(name)))
        for tenant, name in ((ACME, "a"), (GLOBEX, "g"))
        for _ in range(6)
    ]
    await _settle(*tasks)
    work.gate.set()
    await asyncio.gather(*tasks)
    assert abs(work.ran[:6].count("a") - 3) <= 1
    pool.close()


async def test_what_waits_is_bounded_in_bytes() -> None:
    """Too much of one tenant is its own refusal, too much in all the server's; 0 always waits."""
    work = Work()
    pool = FairPool(1, max_waiting_bytes=25, max_tenant_bytes=10, clock=work.clock)
    # The first runs and waits for nothing.
    tasks = [asyncio.create_task(pool.run(ACME, work.of("a"), size_bytes=10)) for _ in range(2)]
    await _settle(*tasks)
    with pytest.raises(TenantLimited):
        await pool.run(ACME, work.of("a"), size_bytes=1)
    for tenant, size_bytes in ((GLOBEX, 6), (INITECH, 3)):
        # Two fifths of what is free, and no more.
        with pytest.raises(Overloaded):
            await pool.run(tenant, work.of("b"), size_bytes=size_bytes + 1)
        tasks.append(asyncio.create_task(pool.run(tenant, work.of("b"), size_bytes=size_bytes)))
        await _settle(*tasks)
    tasks.append(asyncio.create_task(pool.run(ACME, work.of("a"))))
    await _settle(*tasks)
    work.gate.set()
    await asyncio.gather(*tasks)
    assert await pool.run(ACME, work.of("a"), size_bytes=10) == "a"
    pool.close()


async def test_work_is_not_begun_for_who_has_left() -> None:
    """A caller that is cancelled while its work waits costs no thread and no room."""
    work = Work()
    pool = FairPool(1, max_tenant_bytes=10, clock=work.clock)
    first = asyncio.create_task(pool.run(GLOBEX, work.of("g")))
    left = asyncio.create_task(pool.run(ACME, work.of("left"), size_bytes=10))
    await _settle(first, left)
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    work.gate.set()
    assert await first == "g"
    assert await pool.run(ACME, work.of("a"), size_bytes=10) == "a"
    assert work.ran == ["g", "a"]
    pool.close()


async def test_a_tenant_rests_after_work_that_keeps_the_interpreter() -> None:
    """Its next work waits for so many times as long; another tenant's does not."""
    work = Work()
    work.gate.set()
    pool = FairPool(1, clock=work.clock)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    await pool.run(ACME, work.of("a0", took_s=0.1), rest_ratio=3.0)
    mine = asyncio.create_task(pool.run(ACME, work.of("a1", took_s=0.0)))
    await _settle(mine)
    await pool.run(GLOBEX, work.of("g", took_s=0.0))
    await mine
    assert work.ran == ["a0", "g", "a1"]
    assert loop.time() - began_s >= 0.3
    await pool.run(ACME, work.of("a2", took_s=0.0))
    pool.close()


async def test_a_pool_that_closes_wakes_nobody_who_rests() -> None:
    """What waits for a rest to be over is cancelled with what else waits."""
    work = Work()
    work.gate.set()
    pool = FairPool(1, clock=work.clock)
    await pool.run(ACME, work.of("a0", took_s=0.01), rest_ratio=3.0)
    mine = asyncio.create_task(pool.run(ACME, work.of("a1")))
    await _settle(mine)
    pool.close()
    await asyncio.sleep(0.05)
    assert mine.cancelled()
    assert work.ran == ["a0"]


async def test_it_tells_what_work_took() -> None:
    """Whoever keeps accounts hears of each work's tenant and of its time."""
    work, told = Work(), list[tuple[UUID, float]]()
    work.gate.set()
    pool = FairPool(1, clock=work.clock, on_used=lambda *used: told.append(used))
    await pool.run(ACME, work.of("a", 2.0))
    await pool.run(GLOBEX, work.of("b", 0.5))
    assert told == [(ACME, 2.0), (GLOBEX, 0.5)]
    pool.close()
