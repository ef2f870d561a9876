"""Limits that are set, taken off, set again and changed while requests run: none is passed."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest
from redis import Redis

from gateway.domain.counters import (
    Answer,
    Building,
    Done,
    Extend,
    Extended,
    Held,
    HoldAgain,
    Keep,
    Load,
    ReadSlot,
    Reserve,
    Settle,
    SlotUse,
    Sweep,
    Unknown,
    Waiting,
)
from gateway.domain.limits import NO_LIMITS, Amounts, Denied, Limits, Told
from gateway.domain.quota import PLATFORM, Quota, Scope, ScopeKind, ScopeQuota
from gateway.domain.tier import Tier
from gateway.domain.window import Window
from gateway.services.quotas.bill import Meta
from gateway.services.quotas.compile import compile_limits
from tests.gateway.store.quota_harness import LEASE_S, Counters, limits_of, used

LEASE_US = LEASE_S * 1_000_000
TENANT, OTHER = UUID(int=1), UUID(int=99)


class World:
    """A tenant whose limits change, and another one beside it that has none."""

    def __init__(self, redis: Redis) -> None:
        self.counters = Counters(redis)
        self.num_changes = 0
        self.running: set[str] = set()

    def set(self, **limits: int | Window | bool) -> Limits:
        """Return the tenant's limits after a change of them."""
        self.num_changes += 1
        quota = Quota(**limits)  # type: ignore[arg-type]
        return limits_of(self.counters.now_s, self.num_changes, tenant=quota)

    def set_platform(self, tenant: Quota | None = None, **limits: int) -> Limits:
        """Return the limits of a tenant that has its own after a change of the platform's."""
        self.num_changes += 1
        own = () if tenant is None else (ScopeQuota(Scope(ScopeKind.TENANT, TENANT), tenant),)
        platform = ScopeQuota(PLATFORM, Quota(**limits), self.num_changes)
        return compile_limits((*own, platform), self.counters.now_s)

    def ask(self, limits: Limits, tokens: int, *, tenant: UUID = TENANT) -> tuple[str, Answer]:
        """Reserve for a request, loading nothing; return its id and the answer."""
        id_ = uuid4().hex
        amounts = Amounts(1, 0, tokens, 1, 0, tokens, 10 * tokens)
        meta = Meta(UUID(int=50), tenant, UUID(int=60), "demo", Tier.DEFAULT, None).packed()
        [answer] = self.counters.run(Reserve(id_, limits, amounts, meta, LEASE_US))
        return id_, answer

    def begin(self, limits: Limits, tokens: int, *, tenant: UUID = TENANT) -> str:
        """Reserve for a request that is let through; return its id."""
        id_, answer = self.ask(limits, tokens, tenant=tenant)
        assert isinstance(answer, Held), answer
        self.running.add(id_)
        return id_

    def settle(self, id_: str, tokens: int) -> None:
        self.running.discard(id_)
        self.counters.run(Settle(id_, used(output=tokens, nano_usd=10 * tokens)))

    def serve(self, limits: Limits, tokens: int) -> str:
        """Begin a request and end it."""
        id_ = self.begin(limits, tokens)
        self.settle(id_, tokens)
        return id_

    def load(
        self, limits: Limits, ledger: int, asked: tuple[str, ...] = (), booked: tuple[str, ...] = ()
    ) -> Answer:
        """Load it, once it is known that the ledger has nothing of what runs."""
        [limit] = limits.limits
        sums = [0] * (len(limit.slots()) - 1) + [ledger]
        [answer] = self.counters.run(
            Load(limit, sums, [*asked, *self.running], [(id_, 100) for id_ in booked])
        )
        return answer

    def is_counted(self, limits: Limits) -> bool:
        [limit] = limits.limits
        [answer] = self.counters.run(ReadSlot(limit))
        assert isinstance(answer, SlotUse)
        return answer.is_counted

    def stands(self, limits: Limits) -> tuple[int, int]:
        """Return what is used and what is held."""
        [row] = self.counters.look(limits)
        return row["used"], row["held"]


@pytest.fixture
def world(redis_url: str) -> World:
    return World(Redis.from_url(redis_url))


def test_a_limit_that_is_set_again_counts_what_ran_without_it(world: World) -> None:
    """It asks for the ledger, which has both; until then it lets nothing through."""
    before = world.set(daily_tokens=1000)
    world.load(before, 0)
    first = world.serve(before, 400)
    world.set()
    second = world.serve(NO_LIMITS, 500)
    again = world.set(daily_tokens=1000)
    assert isinstance(world.ask(again, 1)[1], Unknown)
    waiting = world.load(again, 900)
    assert isinstance(waiting, Waiting)
    assert set(waiting.request_ids) == {first, second}
    assert world.load(again, 900, (first, second), (first, second)) == Done()
    assert world.stands(again) == (900, 0)
    assert isinstance(world.ask(again, 101)[1], Denied)
    world.begin(again, 100)


@pytest.mark.parametrize("num_booked", [0, 1, 2])
def test_what_ended_before_the_load_is_counted_once(world: World, num_booked: int) -> None:
    """Whether or not its row was in the sums; that of another tenant is not asked for."""
    ids = [world.serve(NO_LIMITS, 100), world.serve(NO_LIMITS, 100)]
    world.begin(NO_LIMITS, 70, tenant=OTHER)
    limits = world.set(daily_tokens=1000)
    booked = tuple(ids[:num_booked])
    waiting = world.load(limits, 100 * num_booked)
    assert isinstance(waiting, Waiting)
    assert set(waiting.request_ids) == set(ids)
    assert world.load(limits, 100 * num_booked, tuple(ids), booked) == Done()
    assert world.stands(limits) == (200, 0)


def test_what_runs_when_a_limit_is_set_is_held_in_it(world: World) -> None:
    """All of what it was granted; its end, and what it asks for, are the limit's too."""
    running = world.begin(NO_LIMITS, 300)
    world.begin(NO_LIMITS, 70, tenant=OTHER)
    limits = world.set(daily_tokens=1000)
    assert world.load(limits, 600) == Done()
    assert world.stands(limits) == (600, 300)
    assert isinstance(world.ask(limits, 101)[1], Denied)
    more = Extend(running, 256, 0, LEASE_US, Told())
    assert world.counters.run(more) == [Extended(100)]
    world.settle(running, 350)
    assert world.stands(limits) == (950, 0)


def test_its_end_tells_of_no_window_that_its_gateway_does_not_know(world: World) -> None:
    """Windows are named by their place in the limits that it began with."""
    began = world.set(rpm=10, daily_tokens=1000)
    world.counters.load(began)
    running = world.begin(began, 300)
    limits = limits_of(
        world.counters.now_s, 9, tenant=Quota(rpm=10, daily_tokens=400, monthly_tokens=400)
    )
    world.counters.load(limits)
    [done] = world.counters.run(Settle(running, used(output=300), began, 25))
    assert isinstance(done, Done)
    assert [(one.limit, one.used) for one in done.windows] == [(began.limits[1], 300)]
    assert [row["used"] for row in world.counters.look(limits)][1:] == [300, 300]


def test_a_limit_that_is_lowered_holds_for_what_runs(world: World) -> None:
    """A request is granted no more than fits the limit as it is now, and held as it was."""
    before = world.set(daily_tokens=10_000)
    world.load(before, 0)
    running = world.begin(before, 300)
    lowered = world.set(daily_tokens=400)
    assert isinstance(world.ask(lowered, 1)[1], Unknown)
    assert world.load(lowered, 0) == Done()
    assert world.stands(lowered) == (0, 300)
    more = Extend(running, 256, 0, LEASE_US, Told())
    assert world.counters.run(more) == [Extended(100)]


def test_a_gateway_that_has_not_heard_of_a_limit_passes_it_no_more(world: World) -> None:
    """What it begins without the limit is held in it; what does not fit has to wait."""
    limits = world.set(daily_tokens=1000)
    world.load(limits, 700)
    late = world.begin(NO_LIMITS, 200)
    assert world.stands(limits) == (700, 200)
    assert isinstance(world.ask(NO_LIMITS, 101)[1], Building)
    world.begin(NO_LIMITS, 500, tenant=OTHER)
    world.settle(late, 150)
    assert world.stands(limits) == (850, 0)
    # By then every gateway has: the limit was taken off.
    world.counters.now_s += 16
    world.begin(NO_LIMITS, 500)


def test_a_gateway_with_the_limit_as_it_was_passes_it_no_more(world: World) -> None:
    """The new one is lower."""
    before, lowered = world.set(daily_tokens=10_000), world.set(daily_tokens=400)
    world.load(lowered, 300)
    assert isinstance(world.ask(before, 101)[1], Building)
    world.begin(before, 100)
    assert world.stands(lowered) == (300, 100)


def test_a_limit_that_is_taken_off_holds_nobody_up(world: World) -> None:
    """Who knows that it is gone begins at once; who has never heard of it waits as before."""
    limits = world.set(daily_tokens=1)
    world.load(limits, 500)
    lifted = world.set()
    assert isinstance(world.ask(NO_LIMITS, 1)[1], Building)
    running = world.begin(lifted, 300)
    more = Extend(running, 256, 0, LEASE_US, Told())
    assert world.counters.run(more) == [Extended(256)]


def test_a_limit_that_is_replaced_by_one_over_another_window_holds_nobody_up(
    world: World,
) -> None:
    """Only what is limited now is weighed, and counted."""
    day = world.set(budget_nano_usd=1, budget_window=Window("day"))
    world.load(day, 500)
    month = world.set(budget_nano_usd=10_000, budget_window=Window("month"))
    world.load(month, 500)
    world.begin(month, 300)
    assert world.stands(month) == (500, 3000)


def test_a_platforms_limit_that_is_taken_off_holds_no_tenant_up(world: World) -> None:
    """Also not one whose own limits are as they were."""
    platform = world.set_platform(daily_tokens=1)
    world.load(platform, 500)
    both = world.set_platform(Quota(rpm=10))
    for tenant in (TENANT, OTHER):
        world.begin(both, 300, tenant=tenant)
    world.begin(world.set_platform(), 300, tenant=OTHER)


def test_a_limit_that_is_gone_is_not_that_of_what_began_without_it(world: World) -> None:
    """A gateway that has not heard that it is gone loads it; what runs goes on."""
    limits, lifted = world.set(daily_tokens=1), world.set()
    running = world.begin(lifted, 300)
    assert world.load(limits, 0) == Done()
    more = Extend(running, 256, 0, LEASE_US, Told())
    assert world.counters.run(more) == [Extended(256)]


def test_a_limit_that_was_taken_off_at_once_and_set_again_has_lost_nothing(world: World) -> None:
    """What ran without it comes from the ledger; a gateway that takes it for gone is held to it."""
    limits = world.set(daily_tokens=1000)
    world.load(limits, 0)
    first = world.serve(limits, 400)
    lifted = world.set()
    second = world.serve(lifted, 500)
    again = world.set(daily_tokens=1000)
    assert isinstance(world.ask(again, 1)[1], Unknown)
    assert world.load(again, 900, (first, second), (first, second)) == Done()
    assert world.stands(again) == (900, 0)
    assert isinstance(world.ask(lifted, 101)[1], Building)
    world.begin(lifted, 60)
    assert world.stands(again) == (900, 60)


def test_a_window_is_counted_until_its_limit_is_known_to_be_gone(world: World) -> None:
    """Nothing is held against the ledger then, and again once the limit is back and loaded."""
    limits = world.set(daily_tokens=1000)
    world.load(limits, 0)
    first = world.serve(limits, 400)
    assert world.is_counted(limits)
    lifted = world.set()
    second = world.serve(lifted, 100)
    assert not world.is_counted(limits)
    again = world.set(daily_tokens=1000)
    world.ask(again, 1)
    assert not world.is_counted(again)
    assert world.load(again, 500, (first, second), (first, second)) == Done()
    world.serve(again, 100)
    assert world.is_counted(again)


def test_a_window_stays_counted_while_others_limits_change(world: World) -> None:
    """Also for a gateway that has met it before the change of its own scope's."""
    limits = world.set(daily_tokens=1000)
    world.load(limits, 0)
    ended = world.serve(world.set_platform(), 100)
    assert world.is_counted(limits)
    raised = world.set(daily_tokens=2000)
    assert world.load(raised, 0, (ended,)) == Done()
    world.serve(raised, 100)
    assert world.is_counted(limits)


def test_what_is_held_again_is_held_in_a_young_limit_too(world: World) -> None:
    """By a gateway that had not heard of it when it came back."""
    limits = world.set(daily_tokens=1000)
    world.load(limits, 700)
    meta = Meta(UUID(int=50), TENANT, UUID(int=60), "demo", Tier.DEFAULT, None).packed()
    at_us = int(world.counters.now_s * 1e6) - 1_735_689_600_000_000
    amounts = Amounts(1, 0, 200, 1, 0, 200, 0)
    world.counters.run(HoldAgain("a", NO_LIMITS, amounts, at_us, meta, LEASE_US))
    assert world.stands(limits) == (700, 200)


def test_a_change_of_another_limit_loses_nothing_that_was_counted(world: World) -> None:
    """Loaded anew from a ledger that lags behind, the window is never behind itself."""
    before = world.set(daily_tokens=1000)
    world.load(before, 0)
    ended = world.serve(before, 400)
    running = world.begin(before, 100)
    after = world.set(daily_tokens=2000)
    assert world.load(after, 0, (ended,)) == Done()
    assert world.stands(after) == (400, 100)
    world.settle(running, 100)
    assert world.stands(after) == (500, 0)
    # So much has ended since that nobody remembers it.
    world.counters.redis.delete("sluice:q:ended")
    again = world.set(daily_tokens=3000)
    assert world.load(again, 300) == Done()
    assert world.stands(again) == (500, 0)


def test_what_runs_when_a_limit_is_set_is_asked_for(world: World) -> None:
    """Its bill may have been quicker than its end; another tenant's is nothing to it."""
    running = world.begin(NO_LIMITS, 300)
    world.begin(NO_LIMITS, 70, tenant=OTHER)
    world.running.clear()
    limits = world.set(daily_tokens=1000)
    waiting = world.load(limits, 100)
    assert isinstance(waiting, Waiting)
    assert waiting.request_ids == [running]
    assert world.load(limits, 100, (running,), (running,)) == Done()
    assert world.stands(limits) == (0, 300)


def test_what_is_overdue_is_held_in_a_new_limit_too(world: World) -> None:
    """Its gateway may come back."""
    before = world.set(daily_tokens=10_000)
    world.load(before, 0)
    late = world.begin(before, 300)
    world.counters.now_s += LEASE_S + 1
    world.counters.run(Sweep(50))
    lowered = world.set(daily_tokens=400)
    assert world.load(lowered, 0) == Done()
    assert world.counters.run(Extend(late, 256, 0, LEASE_US, Told())) == [Extended(100)]


def test_what_began_before_a_window_is_not_of_it(world: World) -> None:
    """It counts in the day that it began in."""
    # Ten seconds before a midnight, and ten after it.
    world.counters.now_s += 86_400 - world.counters.now_s % 86_400 - 10
    world.counters._called_s = world.counters.now_s
    yesterday = world.begin(NO_LIMITS, 300)
    world.serve(NO_LIMITS, 100)
    world.counters.now_s += 20
    limits = world.set(daily_tokens=1000)
    assert world.load(limits, 0) == Done()
    assert world.stands(limits) == (0, 0)
    world.settle(yesterday, 300)
    assert world.stands(limits) == (0, 0)


def test_a_rolling_budget_holds_what_runs_in_the_hour_that_it_began(world: World) -> None:
    """And lets go of it there."""
    running = world.begin(NO_LIMITS, 30)
    for _ in range(160):
        world.counters.now_s += LEASE_S - 5
        world.counters.run(Keep("g", LEASE_US, [(running, Told())]))
    limits = world.set(budget_nano_usd=1000, budget_window=Window("24h"))
    assert world.load(limits, 600) == Done()
    assert world.stands(limits) == (600, 300)
    [row] = world.counters.look(limits)
    assert row["used_now"] == 600
    world.settle(running, 20)
    assert world.stands(limits) == (800, 0)
    assert world.counters.look(limits)[0]["used_now"] == 600


def test_what_was_reaped_lately_is_asked_for_as_well(world: World) -> None:
    """Its bill is on its way to the ledger."""
    dead = world.begin(NO_LIMITS, 100)
    world.counters.run(Keep("g", LEASE_US, [(dead, Told(0, 0, 40, 400))]))
    world.counters.now_s += LEASE_S + 1
    world.counters.sweep()
    world.running.clear()
    limits = world.set(daily_tokens=1000)
    waiting = world.load(limits, 0)
    assert isinstance(waiting, Waiting)
    assert waiting.request_ids == [dead]
    assert world.load(limits, 0, (dead,)) == Done()
    assert world.stands(limits) == (40, 0)


@pytest.mark.parametrize("num_between", [1, 60, 150])
def test_ends_are_found_however_many_came_since_the_last_load(
    world: World, num_between: int
) -> None:
    """They are read from where the last load had come to, and once."""
    first = [world.serve(NO_LIMITS, 1) for _ in range(3)]
    limits = world.set(daily_tokens=1000)
    for known in ([], first):
        waiting = world.load(limits, 0, tuple(known))
        assert isinstance(waiting, Waiting) is not known
    more = [world.serve(NO_LIMITS, 1) for _ in range(num_between)]
    again = world.set(daily_tokens=2000)
    waiting = world.load(again, 0, tuple(first))
    listed = waiting.request_ids if isinstance(waiting, Waiting) else first
    assert sorted(listed) == sorted([*first, *more])
    assert world.load(again, 0, (*first, *more)) == Done()
    assert world.stands(again) == (3 + num_between, 0)


def test_ends_of_a_life_before_are_not_remembered(world: World) -> None:
    """Counters that forgot everything have forgotten these too."""
    world.serve(NO_LIMITS, 70)
    limits = world.set(daily_tokens=1000)
    assert isinstance(world.load(limits, 0), Waiting)
    world.counters.redis.flushdb()
    world.counters.run()
    ended = world.serve(NO_LIMITS, 40)
    waiting = world.load(limits, 0)
    assert isinstance(waiting, Waiting)
    assert waiting.request_ids == [ended]


def test_a_limit_of_a_life_before_is_not_what_requests_are_put_into(world: World) -> None:
    """Nothing of it is loaded in this life: who began without it would wait for that for ever."""
    limits = world.set(daily_tokens=1000)
    assert world.load(limits, 0) == Done()
    world.counters.redis.flushdb()
    world.counters.run()
    running = world.begin(NO_LIMITS, 40)
    assert world.counters.run(Extend(running, 10, 0, LEASE_US, Told())) == [Extended(10)]
    assert world.load(limits, 0) == Done()
    assert world.stands(limits) == (0, 50)


def test_an_extension_that_is_asked_for_again_is_held_once(world: World) -> None:
    """Its answer came too late: of each choice, what it has tells that it is the same ask."""
    limits = world.set(daily_tokens=1000)
    assert world.load(limits, 0) == Done()
    running = world.begin(limits, 300)

    def more(choice: int, granted: int) -> list[object]:
        return [*world.counters.run(Extend(running, 256, 0, LEASE_US, Told(), choice, granted))]

    for _ in range(3):
        assert more(0, 150) == [Extended(256)]
    assert world.stands(limits) == (0, 556)
    for _ in range(2):
        assert more(1, 150) == [Extended(256)]
        assert more(0, 406) == [Extended(188)]
    assert more(1, 406) == more(0, 594) == [Extended(0)]
    assert world.stands(limits) == (0, 1000)
    world.settle(running, 900)
    assert world.stands(limits) == (900, 0)
