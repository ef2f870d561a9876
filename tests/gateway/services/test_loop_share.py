"""Shares of the event loop, most of them by a clock of the test's own."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import TenantLimited
from gateway.services import loop_share
from gateway.services.loop_share import ALONE, TOGETHER, LoopAccount, LoopShare

pytestmark = pytest.mark.anyio

ACME, GLOBEX = UUID(int=1), UUID(int=2)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def _is_waiting(turn: Awaitable[None]) -> bool:
    """Take one step of a turn and tell whether it waits."""
    try:
        next(iter(turn.__await__()))
    except StopIteration:
        return False
    return True


def _beside(share: LoopShare, other: UUID = GLOBEX, seconds: float = 0.01) -> LoopAccount:
    """Have another tenant use a little, and return its account."""
    account = share.of(other)
    account.charge(seconds)
    return account


async def test_who_is_alone_waits_for_nothing() -> None:
    """A tenant has the whole loop while nobody else uses any of it."""
    share = LoopShare(Clock())
    acme = share.of(ACME)
    for _ in range(100):
        acme.charge(1.0)
        assert not _is_waiting(acme.turn())


async def test_others_are_gone_once_they_used_nothing_lately() -> None:
    """What another used long ago takes nothing from a tenant's share."""
    clock = Clock()
    share = LoopShare(clock)
    _beside(share, seconds=1.0)
    clock.now_s += 11
    acme = share.of(ACME)
    acme.charge(1.0)
    assert not _is_waiting(acme.turn())


async def test_who_is_ahead_waits_until_that_is_paid_off() -> None:
    """Beside another, 40 ms of the loop are paid off after 100 ms; the other waits for nothing."""
    clock = Clock()
    share = LoopShare(clock)
    acme, globex = share.of(ACME), _beside(share)
    clock.now_s += 1
    acme.charge(0.04)
    turn = asyncio.create_task(acme.turn())
    for _ in range(2):
        await asyncio.sleep(0.06)
        assert not turn.done()
        assert not _is_waiting(globex.turn())
        clock.now_s += 0.04 / ALONE / 2
    await asyncio.wait_for(turn, 1)


async def test_a_little_may_come_at_once() -> None:
    """What takes less than the burst is not waited for."""
    share = LoopShare(Clock())
    _beside(share)
    acme = share.of(ACME)
    acme.charge(0.003)
    assert not _is_waiting(acme.turn())
    acme.charge(0.003)
    assert _is_waiting(acme.turn())


async def test_who_uses_little_waits_for_no_step_that_stood_still() -> None:
    """A step that the machine held up for long makes its tenant wait for nothing; many would."""
    clock = Clock()
    share = LoopShare(clock)
    _beside(share)
    acme = share.of(ACME)

    async def step(seconds: float) -> None:
        clock.now_s += seconds

    for _ in range(3):
        clock.now_s += 0.05
        await acme.charged(step(0.06))
        assert not _is_waiting(acme.turn())
    for _ in range(3):
        await acme.charged(step(0.005))
    assert _is_waiting(acme.turn())


@given(used_s=st.lists(st.floats(0.002, 3.0), min_size=2, max_size=40), data=st.data())
def test_shares_are_what_others_leave_and_an_equal_part(
    used_s: list[float], data: st.DataObject
) -> None:
    """No share is above `ALONE`, below an equal part, or below what is left, whatever is used."""
    clock = Clock()
    share = LoopShare(clock)
    for number, seconds in enumerate(used_s):
        share.of(UUID(int=number)).charge(seconds)
    clock.now_s += 0.5
    share.of(UUID(int=0)).charge(0.0)
    own = data.draw(st.sampled_from(used_s)) * math.exp(-0.5)
    others = sum(used_s) * math.exp(-0.5) - own
    rate = share.rate(own, clock(), UUID(int=0))
    assert rate <= ALONE
    assert rate >= min(ALONE, TOGETHER / len(used_s)) - 1e-9
    assert rate >= min(ALONE, TOGETHER - others) - 1e-9
    if others >= TOGETHER:
        assert rate == pytest.approx(min(ALONE, TOGETHER / len(used_s)))


async def test_tenants_of_one_organisation_have_one_part() -> None:
    """Two hundred of one owner that use all they get leave its share to who uses little."""
    clock = Clock()
    share = LoopShare(clock)
    owner, victim = UUID(int=1000), share.of(GLOBEX)
    many = [share.of(UUID(int=number), owner) for number in range(10, 210)]
    for _ in range(10):
        for one in many:
            clock.now_s += 0.005
            one.charge(0.005)
        victim.charge(0.003)
        assert not _is_waiting(victim.turn())
    assert all(_is_waiting(one.turn()) for one in many[-50:])
    assert share.owner_of(UUID(int=10)) == owner
    assert share.owner_of(GLOBEX) == GLOBEX


async def test_only_steps_are_charged() -> None:
    """What work waits for costs nothing; what it computes does, in each of its steps."""
    clock = Clock()
    share = LoopShare(clock)
    _beside(share)
    clock.now_s += 1

    async def work() -> str:
        clock.now_s += 0.002
        waited = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(_pass, clock, 5.0, waited)
        assert await waited == "waited"
        clock.now_s += 0.003
        return "done"

    acme = share.of(ACME)
    began_s = clock()
    assert await acme.charged(work()) == "done"
    assert clock() - began_s == pytest.approx(5.005)
    assert not _is_waiting(acme.turn())
    clock.now_s = began_s + 5.005
    acme.charge(0.004)
    # 7 ms at `ALONE` are over the burst of 10 ms, 4 are not.
    assert _is_waiting(acme.turn())


def _pass(clock: Clock, seconds: float, waited: asyncio.Future[str]) -> None:
    clock.now_s += seconds
    waited.set_result("waited")


async def test_failures_and_cancellations_go_through() -> None:
    """Charged work raises what it raises, and can catch being cancelled and being out of time."""
    acme = LoopShare().of(ACME)

    async def fail() -> None:
        await asyncio.sleep(0)
        raise KeyError("x")

    with pytest.raises(KeyError):
        await acme.charged(fail())

    async def hurry() -> str:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(10)
        except TimeoutError:
            return "late"
        return "never"

    assert await acme.charged(hurry()) == "late"
    seen: list[str] = []

    async def clean() -> None:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            seen.append("cleaned")
            raise

    task = asyncio.create_task(acme.charged(clean()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cleaned"]


async def test_what_work_starts_is_its_tenants() -> None:
    """A task that charged work starts with `charged` is charged to the same tenant."""
    clock = Clock()
    share = LoopShare(clock)
    _beside(share)

    async def child() -> None:
        for _ in range(5):
            clock.now_s += 0.004
            await asyncio.sleep(0)

    async def parent() -> None:
        await asyncio.create_task(loop_share.charged(child()))

    await share.of(ACME).charged(parent())
    assert _is_waiting(share.of(ACME).turn())
    assert not _is_waiting(share.of(GLOBEX).turn())


async def test_without_a_tenant_nothing_waits() -> None:
    """Work of the server's own is charged to nobody and has its turn at once."""

    async def work() -> int:
        await loop_share.turn()
        return 7

    assert await loop_share.charged(work()) == 7


async def test_turns_come_in_order_and_one_by_one() -> None:
    """Who came first begins first, and what it is charged for keeps the next one waiting."""
    clock = Clock()
    share = LoopShare(clock)
    _beside(share)
    acme = share.of(ACME)
    acme.charge(0.04)
    begun: list[int] = []

    async def begin(number: int) -> None:
        await acme.turn()
        begun.append(number)
        acme.charge(0.04)

    tasks = [asyncio.create_task(begin(number)) for number in range(3)]
    await asyncio.sleep(0)
    for expected in range(1, 4):
        clock.now_s += 0.13
        await asyncio.sleep(0.15)
        assert begun == list(range(expected))
    await asyncio.gather(*tasks)


async def test_who_leaves_the_queue_takes_no_turn() -> None:
    """One that is cancelled while it waits does not keep those behind it waiting."""
    clock = Clock()
    share = LoopShare(clock)
    _beside(share)
    acme = share.of(ACME)
    acme.charge(0.02)
    left, stays = (asyncio.create_task(acme.turn()) for _ in range(2))
    await asyncio.sleep(0)
    left.cancel()
    clock.now_s += 1
    await asyncio.wait_for(stays, 1)


async def test_the_queue_is_bounded() -> None:
    """Beyond so many that wait, a tenant's next one is refused; another tenant's is not."""
    share = LoopShare(Clock(), max_waiting=2)
    globex = _beside(share)
    acme = share.of(ACME)
    acme.charge(1.0)
    waiting = [asyncio.create_task(acme.turn()) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(TenantLimited) as refused:
        await acme.turn()
    assert refused.value.retry_after_s
    await globex.turn()
    for task in waiting:
        task.cancel()


async def test_tenants_that_are_gone_are_forgotten() -> None:
    """An account is kept while something is owed or was used lately, and no longer."""
    clock = Clock()
    share = LoopShare(clock)
    for number in range(100):
        share.of(UUID(int=number)).charge(0.01)
    owed = share.of(UUID(int=0))
    owed.charge(20.0)
    clock.now_s += 12
    share.of(ACME).charge(0.01)
    assert share.of(UUID(int=0)) is owed
    assert len(share._accounts) == 2


async def test_a_light_tenants_steps_wait_for_little() -> None:
    """Beside thirty clients whose steps take a millisecond, one of few steps gets through soon."""

    async def request(num_steps: int, step_s: float) -> None:
        for _ in range(num_steps):
            until_s = time.perf_counter() + step_s
            while time.perf_counter() < until_s:
                pass
            await asyncio.sleep(0)

    async def median_s(share: LoopShare | None) -> float:
        async def serve(tenant: UUID, num_steps: int, step_s: float) -> None:
            if share is None:
                await request(num_steps, step_s)
                return
            await share.of(tenant).turn()
            await share.of(tenant).charged(request(num_steps, step_s))

        async def flood() -> None:
            while True:
                await serve(ACME, 5, 0.001)

        floods = [asyncio.create_task(flood()) for _ in range(30)]
        took_s = []
        for _ in range(5):
            await asyncio.sleep(0.01)
            began_s = time.perf_counter()
            await serve(GLOBEX, 15, 0.0)
            took_s.append(time.perf_counter() - began_s)
        for task in floods:
            task.cancel()
        await asyncio.gather(*floods, return_exceptions=True)
        return sorted(took_s)[2]

    assert await median_s(LoopShare()) < 0.25 * await median_s(None)
