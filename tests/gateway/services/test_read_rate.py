"""How often a tenant may read, against a clock of the test's own."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from gateway.errors import TenantLimited
from gateway.services.read_rate import PATIENCE_S, ReadRate

ACME, GLOBEX = UUID(int=1), UUID(int=2)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def time(self) -> float:
        raise AssertionError("a wall clock goes back")

    def monotonic(self) -> float:
        return self.now_s


def test_a_minutes_worth_comes_at_once_and_then_one_by_one() -> None:
    """Sixty, then one a second; what is refused counts nothing, and says when it fits."""
    clock = Clock()
    rate = ReadRate(60, clock)
    for _ in range(60):
        rate.charge(ACME)
    for _ in range(3):
        with pytest.raises(TenantLimited) as refused:
            rate.charge(ACME)
        assert refused.value.retry_after_s == pytest.approx(1.0)
    clock.now_s += 1.0
    rate.charge(ACME)
    with pytest.raises(TenantLimited):
        rate.charge(ACME)
    rate.charge(GLOBEX)


def test_a_look_may_cost_more_than_one() -> None:
    """Ten of sixty six times; the seventh waits for ten."""
    rate = ReadRate(60, Clock())
    for _ in range(6):
        rate.charge(ACME, 10)
    with pytest.raises(TenantLimited) as refused:
        rate.charge(ACME, 10)
    assert refused.value.retry_after_s == pytest.approx(10.0)


def test_what_costs_more_than_there_are_costs_all() -> None:
    """A change may be made once a minute where five reads are all that a tenant has of one."""
    clock = Clock()
    rate = ReadRate(5, clock)
    rate.charge(ACME, 10)
    with pytest.raises(TenantLimited) as refused:
        rate.charge(ACME, 10)
    assert refused.value.retry_after_s == pytest.approx(60.0)
    clock.now_s += 60.0
    rate.charge(ACME, 10)


def test_nothing_is_saved_up() -> None:
    """Who was away for an hour has a minute's worth, as everybody."""
    clock = Clock()
    rate = ReadRate(60, clock)
    rate.charge(ACME)
    clock.now_s += 3600
    for _ in range(60):
        rate.charge(ACME)
    with pytest.raises(TenantLimited):
        rate.charge(ACME)


def test_tenants_that_are_whole_again_are_forgotten() -> None:
    """What is remembered is bounded by who reads, not by who ever did."""
    clock = Clock()
    rate = ReadRate(60, clock)
    for n in range(5000):
        clock.now_s += 1.5
        rate.charge(UUID(int=n))
    assert len(rate._whole_at) <= 1025


@pytest.mark.anyio
async def test_who_is_refused_is_told_slowly() -> None:
    """Four clients that wait for their answers get few; others are let in at once meanwhile."""
    rate = ReadRate(1, Clock(), hold_s=0.05)
    loop = asyncio.get_running_loop()
    await rate.admit(ACME)
    until_s = loop.time() + 0.2
    num_refused = 0

    async def ask_again() -> None:
        nonlocal num_refused
        while loop.time() < until_s:
            with pytest.raises(TenantLimited):
                await rate.admit(ACME)
            num_refused += 1

    flood = asyncio.gather(*(ask_again() for _ in range(4)))
    await asyncio.sleep(0)
    await rate.admit(GLOBEX)
    # None of them had waited for its first answer.
    assert num_refused == 0
    await flood
    assert num_refused <= 4 * 5


@pytest.mark.anyio
async def test_a_paced_read_waits_for_its_turn() -> None:
    """Beyond a minute's worth each is later, up to some seconds; then they are refused."""
    clock = Clock()
    rate = ReadRate(600_000, clock, hold_s=0.0)
    await rate.pace(ACME, 600_000)
    clock.now_s += 0.02
    await rate.pace(ACME, 220)
    with pytest.raises(TenantLimited):
        await rate.pace(ACME, 10_000 * PATIENCE_S)
    with pytest.raises(TenantLimited):
        rate.charge(ACME)
    await rate.pace(GLOBEX, 1)
