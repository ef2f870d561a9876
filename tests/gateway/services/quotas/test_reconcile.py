"""Counters held against a ledger: what is mended, by how much, and what is left alone."""

from __future__ import annotations

import pytest

from gateway.domain.counters import ReadSlot, Repair, SlotUse
from gateway.domain.limits import Limit, Sums
from gateway.domain.quota import Metric, Quota
from gateway.services.quotas.reconcile import Reconciler
from tests.gateway.services.quotas.scripted import Rig

pytestmark = pytest.mark.anyio


class World:
    """A tenant with a daily cap; what its counter and the ledger have is set."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.reconciler = Reconciler(rig.quotas, rig.ledger, rig.metrics)
        self.used, self.held, self.is_counted = 0, 0, True
        rig.counters.answers[ReadSlot] = self._slot

    async def meet(self, **quota: int) -> Limit:
        """Have a request meet the limits."""
        lease, _ = await self.rig.hold(Quota(**quota))
        [self.limit] = [limit for limit in lease.limits.limits if limit.slot is not None]
        return self.limit

    async def round(self, *, used: int, billed: int, held: int = 0) -> list[Repair]:
        """Compare once; return the repairs that were asked for."""
        self.used, self.held = used, held
        is_money = self.limit.metric is Metric.BUDGET
        sums = Sums(nano_usd=billed) if is_money else Sums(tokens=billed)
        self.rig.ledger.sums[self.limit.scope] = sums
        self.rig.counters.calls.clear()
        await self.reconciler.round()
        return self.rig.counters.asked(Repair)

    def repair(self, seen: int | None, more: int) -> Repair:
        return Repair(self.limit, seen, more)

    def _slot(self, op: ReadSlot) -> SlotUse:
        assert op.limit == self.limit
        return SlotUse(self.is_counted, self.used, self.held)


@pytest.fixture
async def world() -> World:
    """A tenant of 1,000 tokens a day that has asked for something."""
    world = World(Rig())
    await world.meet(daily_tokens=1000)
    return world


async def test_what_is_behind_twice_is_raised_by_the_least_that_was_missing(world: World) -> None:
    """Once may be a row that came between two looks; after a repair it counts from the start."""
    assert await world.round(used=100, billed=150) == []
    assert await world.round(used=120, billed=150) == [world.repair(None, 30)]
    assert world.rig.metric("sluice_quota_repairs_total") == 1
    assert await world.round(used=120, billed=150) == []
    assert await world.round(used=150, billed=150) == []
    assert await world.round(used=150, billed=160) == []


async def test_what_is_ahead_is_believed_for_ten_rounds(world: World) -> None:
    """The rows may still wait somewhere; then it is lowered, if it is still as it was seen."""
    for _ in range(9):
        assert await world.round(used=200, billed=150) == []
    assert await world.round(used=200, billed=150) == [world.repair(200, -50)]


async def test_what_is_ahead_and_held_is_left_alone(world: World) -> None:
    """A request that runs may be what makes the difference."""
    for _ in range(20):
        assert await world.round(used=200, billed=150, held=1) == []
    assert await world.round(used=200, billed=150) == [world.repair(200, -50)]


async def test_what_is_ahead_by_another_amount_begins_to_count_anew(world: World) -> None:
    """Ten rounds of the same difference are needed."""
    for number in range(15):
        assert await world.round(used=200 + number % 2, billed=150) == []
    for _ in range(8):
        assert await world.round(used=200, billed=150) == []
    assert await world.round(used=200, billed=150) == [world.repair(200, -50)]


async def test_a_budget_is_held_against_the_money(world: World) -> None:
    """Nano-dollars against nano-dollars."""
    world = World(Rig())
    await world.meet(budget_nano_usd=10**9)
    assert await world.round(used=5, billed=7) == []
    assert await world.round(used=5, billed=7) == [world.repair(None, 2)]


async def test_a_window_that_nobody_counts_is_not_compared(world: World) -> None:
    """It is loaded from the ledger by the next request, so nothing can be missing."""
    world.is_counted = False
    for _ in range(3):
        assert await world.round(used=0, billed=150) == []
    assert world.rig.metric("sluice_quota_drift") == 0


async def test_a_window_that_is_not_counted_is_let_go_of_until_it_is_met_again(
    world: World,
) -> None:
    """What it lacks by then is no loss, whatever is counted in it later."""
    world.is_counted = False
    assert await world.round(used=0, billed=150) == []
    world.is_counted = True
    for _ in range(3):
        assert await world.round(used=0, billed=150) == []
    assert world.rig.metric("sluice_quota_drift") == 0
    await world.meet(daily_tokens=1000)
    assert await world.round(used=100, billed=150) == []
    assert await world.round(used=100, billed=150) == [world.repair(None, 50)]


async def test_a_window_that_is_over_is_not_compared(world: World) -> None:
    """Nothing can be refused by it any more."""
    world.rig.clock.now_s += 86_400
    for _ in range(3):
        assert await world.round(used=100, billed=150) == []
    assert world.rig.counters.asked(ReadSlot) == []


async def test_the_largest_difference_is_told_as_a_share(world: World) -> None:
    """Whichever way it goes."""
    await world.round(used=100, billed=150)
    assert world.rig.metric("sluice_quota_drift") == pytest.approx(0.05)
    await world.round(used=170, billed=150)
    assert world.rig.metric("sluice_quota_drift") == pytest.approx(0.02)
    await world.round(used=150, billed=150)
    assert world.rig.metric("sluice_quota_drift") == 0
