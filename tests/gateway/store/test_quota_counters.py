"""Every limit counted in a real Valkey: what is let through, what is refused, when to return."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis

from gateway.domain.counters import (
    Begun,
    Billed,
    Building,
    Done,
    Extend,
    Extended,
    Held,
    Keep,
    Kept,
    Known,
    Look,
    Reap,
    Reaped,
    Settle,
    Settled,
    Stale,
    Sweep,
    Swept,
    WindowUse,
)
from gateway.domain.limits import BASE_S, Denied, Told
from gateway.domain.quota import Quota
from gateway.domain.window import Window
from tests.gateway.store.quota_harness import LEASE_S, Counters, limits_of, used


@pytest.fixture
def counters(redis_url: str) -> Counters:
    return Counters(Redis.from_url(redis_url))


def test_a_rate_lets_its_limit_through_at_once_and_then_refills(counters: Counters) -> None:
    """Sixty a minute: sixty at once, then one a second, and the wait that is told is true."""
    limits = limits_of(counters.now_s, key=Quota(rpm=60))
    for number in range(60):
        assert isinstance(counters.reserve(limits, f"r{number}"), Held)
    denied = counters.reserve(limits, "more")
    assert isinstance(denied, Denied)
    assert (denied.left, denied.used) == (0, 60)
    assert denied.wait_s is not None
    assert 0.999 <= denied.wait_s <= 1.000_001
    counters.now_s += denied.wait_s - 0.001
    assert isinstance(counters.reserve(limits, "early"), Denied)
    counters.now_s += 1001 / 1e6
    assert isinstance(counters.reserve(limits, "then"), Held)


def test_a_rate_that_is_raised_keeps_what_was_used_of_it(counters: Counters) -> None:
    """One request of one a minute is one of a thousand a minute, and 999 go through at once."""
    before = limits_of(counters.now_s, key=Quota(rpm=1))
    assert isinstance(counters.reserve(before, "a"), Held)
    after = limits_of(counters.now_s, key=Quota(rpm=1000))
    [row] = counters.look(after)
    assert (row["used"], row["left"], row["whole_in_us"]) == (1, 999, 60_000)
    for number in range(999):
        assert isinstance(counters.reserve(after, f"r{number}"), Held)
    assert isinstance(counters.reserve(after, "more"), Denied)


def test_a_rate_that_is_lowered_is_full_and_no_more_than_full(counters: Counters) -> None:
    """Who had used more than the new limit waits as everybody does, and not for what it was."""
    before = limits_of(counters.now_s, key=Quota(input_tpm=1000))
    assert isinstance(counters.reserve(before, "a", prompt=900), Held)
    after = limits_of(counters.now_s, key=Quota(input_tpm=10))
    denied = counters.reserve(after, "b", prompt=1)
    assert isinstance(denied, Denied)
    assert (denied.left, denied.used, denied.wait_s) == (0, 10, 6.0)
    counters.now_s += 6
    assert isinstance(counters.reserve(after, "c", prompt=1), Held)
    counters.now_s += 60
    assert isinstance(counters.reserve(after, "d", prompt=10), Held)


def test_what_was_held_at_another_rate_comes_back_as_it_was(counters: Counters) -> None:
    """Ninety tokens that were not used are ninety, whatever the limit is by then."""
    before = limits_of(counters.now_s, key=Quota(output_tpm=100))
    counters.reserve(before, "a", output=100)
    after = limits_of(counters.now_s, key=Quota(output_tpm=1000))
    counters.reserve(after, "b", output=400)
    counters.run(Settle("a", used(output=10)))
    assert [row["used"] for row in counters.look(after)] == [410]


def test_a_clock_that_goes_back_makes_nobody_wait_longer(counters: Counters) -> None:
    """What is used stays used, and is given back from the new time on."""
    limits = limits_of(counters.now_s, key=Quota(rpm=1))
    counters.reserve(limits, "a")
    counters.now_s -= 3600
    counters._called_s = counters.now_s
    denied = counters.reserve(limits, "b")
    assert isinstance(denied, Denied)
    assert denied.wait_s == 60


def test_all_limits_or_none(counters: Counters) -> None:
    """What one limit refuses costs nothing of the others."""
    limits = limits_of(
        counters.now_s, key=Quota(rpm=10, concurrency=5), tenant=Quota(daily_tokens=100)
    )
    assert isinstance(counters.reserve(limits, "a", prompt=60, output=20), Held)
    before = counters.look(limits)
    denied = counters.reserve(limits, "b", prompt=60, output=20)
    assert isinstance(denied, Denied)
    assert denied.limit is limits.limits[2]
    assert (denied.wait_s, denied.is_exhausted) == (0, False)
    assert counters.look(limits) == before


def test_a_held_window_is_a_wait_and_a_used_one_is_not(counters: Counters) -> None:
    """While others hold the rest it may still come; once it is used, not before the next window."""
    limits = limits_of(counters.now_s, tenant=Quota(daily_tokens=100))
    counters.reserve(limits, "a", prompt=10, output=70)
    [limit] = limits.limits
    denied = counters.reserve(limits, "b", prompt=10, output=20)
    assert denied == Denied(limit, 0, left=20, used=0)
    counters.run(Settle("a", used(10, 70)))
    denied = counters.reserve(limits, "c", prompt=10, output=20)
    assert denied == Denied(limit, 0, left=20, used=80, is_exhausted=True)
    assert isinstance(counters.reserve(limits, "d", prompt=10, output=10), Held)


def test_a_request_above_a_limit_never_fits(counters: Counters) -> None:
    """A prompt longer than a minute's tokens is told so, not to wait."""
    limits = limits_of(counters.now_s, key=Quota(input_tpm=100))
    denied = counters.reserve(limits, "a", prompt=101)
    assert isinstance(denied, Denied)
    assert denied.wait_s is None
    assert isinstance(counters.reserve(limits, "b", prompt=100), Held)


def test_zero_lets_nothing_through(counters: Counters) -> None:
    """A limit of 0 refuses, of every kind."""
    for quota in (
        Quota(rpm=0),
        Quota(concurrency=0),
        Quota(daily_tokens=0),
        Quota(budget_nano_usd=0),
    ):
        limits = limits_of(counters.now_s, key=quota)
        answer = counters.reserve(limits, "a", prompt=1, output=1, nano_usd=1)
        assert isinstance(answer, Denied)


def test_what_was_not_used_comes_back(counters: Counters) -> None:
    """Settling below the reservation refunds rates, counts and windows what was not used."""
    quota = Quota(
        input_tpm=1000, output_tpm=1000, concurrency=2, monthly_tokens=1000, budget_nano_usd=5000
    )
    limits = limits_of(counters.now_s, tenant=quota)
    counters.reserve(limits, "a", prompt=100, output=256, nano_usd=900)
    counters.run(Settle("a", used(100, 6, 300)))
    left = {row["metric"].value: row["left"] for row in counters.look(limits)}
    assert left == {
        "input_tpm": 900,
        "output_tpm": 994,
        "concurrency": 2,
        "monthly_tokens": 894,
        "budget_nano_usd": 4700,
    }


def test_a_second_settle_does_nothing(counters: Counters) -> None:
    """Settling is idempotent, and so is reserving again before and after it."""
    limits = limits_of(counters.now_s, tenant=Quota(daily_tokens=1000, rpm=10))
    first = counters.reserve(limits, "a", prompt=10, output=10)
    again = counters.reserve(limits, "a", prompt=10, output=10)
    assert isinstance(first, Held)
    assert again == Held(first.at_us)
    assert isinstance(counters.run(Settle("a", used(10, 5)))[0], Done)
    seen = counters.look(limits)
    assert counters.run(Settle("a", used(10, 5))) == [Known()]
    assert counters.reserve(limits, "a", prompt=10, output=10) == Settled()
    assert counters.look(limits) == seen


def test_an_extension_gets_what_fits(counters: Counters) -> None:
    """The last tokens of a quota are granted too, and then none."""
    limits = limits_of(counters.now_s, tenant=Quota(daily_tokens=100, budget_nano_usd=1000))
    counters.reserve(limits, "a", prompt=10, output=40, nano_usd=400)
    more = Extend("a", 64, 640, LEASE_S * 1_000_000, Told(10, 0, 30, 0))
    assert counters.run(more) == [Extended(50)]
    assert counters.run(more) == [Extended(0)]
    assert [row["left"] for row in counters.look(limits)] == [0, 100]


def test_an_abandoned_lease_is_charged_what_was_told_of_it(counters: Counters) -> None:
    """After its lease a hold is gone; what was told is used and left to be billed, once."""
    limits = limits_of(counters.now_s, tenant=Quota(daily_tokens=1000, concurrency=3))
    counters.reserve(limits, "told", prompt=100, output=256)
    counters.reserve(limits, "untold", prompt=100, output=256)
    told = Told(100, 20, 60, 7)
    counters.run(Keep("g", LEASE_S * 1_000_000, [("told", told)]))
    counters.now_s += LEASE_S + 1
    assert counters.sweep() == 2
    [swept] = counters.run(Sweep(10))
    assert isinstance(swept, Swept)
    assert (swept.num_reaped, swept.num_leases, swept.overdue) == (0, 0, [])
    [orphan] = swept.orphans
    assert (orphan.request_id, orphan.told) == ("told", told)
    assert [(row["used"], row["held"]) for row in counters.look(limits)] == [(0, 0), (160, 0)]
    counters.run(Billed(["told"]))
    assert counters.run(Sweep(10)) == [Swept(0, 0, [], [])]


def test_an_abandoned_lease_is_charged_the_rate_that_was_told(counters: Counters) -> None:
    """Cached input at its weight; what an earlier release had told of, without its cached part."""
    limits = limits_of(counters.now_s, tenant=Quota(input_tpm=1000))
    for id_ in ("now", "before"):
        counters.reserve(limits, id_, prompt=400)
    told = Told(400, 100, 1, 7, rate_tokens=330)
    counters.run(Keep("g", LEASE_S * 1_000_000, [("now", told), ("before", told)]))
    record = counters.redis.get("sluice:q:r:before")
    assert isinstance(record, bytes)
    # In MessagePack: a list of six, the last of them 330.
    assert (record[:1], record[-3:]) == (b"\x96", b"\xcd\x01\x4a")
    counters.redis.set("sluice:q:r:before", b"\x95" + record[1:-3])
    counters.now_s += LEASE_S
    refilled = 1000 * LEASE_S // 60
    assert counters.look(limits)[0]["used"] == 330 + 300 - refilled


def test_a_late_settle_corrects_what_was_reaped(counters: Counters) -> None:
    """A row that was found after its process died replaces the estimate, once."""
    limits = limits_of(counters.now_s, tenant=Quota(daily_tokens=1000))
    counters.reserve(limits, "a", prompt=100, output=256)
    counters.run(Keep("g", LEASE_S * 1_000_000, [("a", Told(100, 0, 60, 0))]))
    counters.now_s += LEASE_S + 1
    counters.sweep()
    assert isinstance(counters.run(Settle("a", used(100, 90)))[0], Done)
    assert counters.run(Settle("a", used(100, 90))) == [Known()]
    assert counters.look(limits)[0]["used"] == 190


def test_what_is_overdue_under_a_hard_limit_waits_for_the_ledger(counters: Counters) -> None:
    """It holds what it holds until somebody has looked; what is under rates alone is let go."""
    hard = limits_of(counters.now_s, tenant=Quota(daily_tokens=1000))
    rates = limits_of(counters.now_s, key=Quota(concurrency=1))
    began = {
        id_: counters.reserve(hard, id_, prompt=100, output=100)
        for id_ in ("billed", "renewed", "settled", "lost")
    }
    counters.reserve(rates, "rates")
    counters.run(Keep("g", LEASE_S * 1_000_000, [("billed", Told(100, 0, 5, 0))]))
    counters.now_s += LEASE_S + 1
    [swept] = counters.run(Sweep(10))
    assert isinstance(swept, Swept)
    assert (swept.num_leases, swept.orphans) == (4, [])
    assert sorted(swept.overdue) == sorted(
        (id_, held.at_us) for id_, held in began.items() if isinstance(held, Held)
    )
    assert counters.look(hard)[0]["held"] == 800
    assert counters.look(rates)[0]["held"] == 0
    counters.run(
        Keep("g", LEASE_S * 1_000_000, [("renewed", Told())]), Settle("settled", used(100, 1))
    )
    ids = ("renewed", "settled", "lost", "nobody")
    reap = Reap([("billed", used(100, 90)), *((id_, None) for id_ in ids)])
    assert counters.run(reap) == [Reaped(2)]
    assert counters.run(reap) == [Reaped(0)]
    [row] = counters.look(hard)
    assert (row["used"], row["held"]) == (100 + 90 + 101, 200)
    # What the ledger has is nobody's to bill, and its true end corrects it.
    assert counters.run(Sweep(10)) == [Swept(0, 1, [], [])]
    counters.run(Settle("billed", used(100, 40)))
    assert counters.look(hard)[0]["used"] == 241


def test_keeping_tells_what_is_no_longer_held(counters: Counters) -> None:
    """A lease that was reaped, or forgotten, is told from one that was settled."""
    limits = limits_of(counters.now_s, tenant=Quota(daily_tokens=1000))
    for id_ in ("reaped", "settled"):
        counters.reserve(limits, id_, prompt=1, output=1)
    counters.run(Settle("settled", used(1, 1)))
    counters.now_s += LEASE_S + 1
    counters.sweep()
    told = [(id_, Told(1)) for id_ in ("reaped", "settled", "forgotten")]
    assert counters.run(Keep("g", 1, told)) == [Kept(1, {"reaped": True, "forgotten": False})]


def test_a_new_day_is_a_new_slot(counters: Counters) -> None:
    """At midnight the quota is whole; who began before still counts in the day that it began."""
    counters.now_s = BASE_S + 86_400 * 10 - 1
    before = limits_of(counters.now_s, tenant=Quota(daily_tokens=100))
    counters.reserve(before, "late", prompt=10, output=50)
    counters.now_s += 2
    assert counters.reserve(before, "stale", prompt=1, output=1) == Stale()
    after = limits_of(counters.now_s, tenant=Quota(daily_tokens=100))
    assert isinstance(counters.reserve(after, "whole", prompt=50, output=50), Held)
    counters.run(Settle("late", used(10, 40)))
    assert [(row["used"], row["held"]) for row in counters.look(after)] == [(0, 100)]


def test_a_rolling_window_forgets_slot_by_slot(counters: Counters) -> None:
    """What was used leaves the last 24 hours an hour at a time, and never early."""
    counters.now_s = BASE_S + 86_400 * 20 + 600
    quota = Quota(budget_nano_usd=100, budget_window=Window("24h"))
    limits = limits_of(counters.now_s, tenant=quota)
    counters.reserve(limits, "a", nano_usd=60)
    counters.run(Settle("a", used(nano_usd=60)))
    for hours, verdict in ((1, Denied), (24, Denied), (25, Held)):
        counters.now_s = BASE_S + 86_400 * 20 + 600 + hours * 3600
        limits = limits_of(counters.now_s, tenant=quota)
        assert isinstance(counters.reserve(limits, f"b{hours}", nano_usd=60), verdict), hours


def test_hard_limits_wait_until_everybody_has_come_back(counters: Counters) -> None:
    """After the counters were lost nothing hard passes until they are built; rates do."""
    hard = limits_of(counters.now_s, tenant=Quota(daily_tokens=100))
    rates = limits_of(counters.now_s, tenant=Quota(rpm=100))
    counters.run(Look(rates))
    counters.redis.delete("sluice:q:epoch")
    counters.found("again", 3)
    assert isinstance(counters.reserve(hard, "a", prompt=1, output=1), Building)
    assert isinstance(counters.reserve(rates, "b", prompt=1, output=1), Held)
    counters.now_s += 4
    assert isinstance(counters.reserve(hard, "a", prompt=1, output=1), Held)


def test_a_prompt_that_has_begun_waits_no_longer(counters: Counters) -> None:
    """Its tokens leave the queue once, however often that is said."""
    limits = limits_of(counters.now_s, tenant=Quota(queued_tokens=250))
    for id_ in ("a", "b"):
        counters.reserve(limits, id_, prompt=100, queued=100)
    assert isinstance(counters.reserve(limits, "c", prompt=51, queued=51), Denied)
    counters.run(Begun("a"))
    counters.run(Begun("a"))
    counters.run(Settle("a", used(100, 1)))
    assert counters.look(limits)[0]["held"] == 100


def test_a_soft_budget_refuses_nothing(counters: Counters) -> None:
    """It is counted beyond its amount."""
    limits = limits_of(counters.now_s, tenant=Quota(budget_nano_usd=10, budget_hard=False))
    assert isinstance(counters.reserve(limits, "a", nano_usd=50), Held)
    # What it asks for is granted whole, at any price.
    more = Extend("a", 256, 2560, LEASE_S * 1_000_000, Told())
    assert counters.run(more) == [Extended(256)]
    [settled] = counters.run(Settle("a", used(nano_usd=50), limits))
    assert settled == Done([WindowUse(limits.limits[0], 50)])


@pytest.mark.parametrize("percent", [1, 24, 100, 250])
def test_a_settled_window_is_listed_from_the_percent_that_is_asked(
    counters: Counters, percent: int
) -> None:
    """From one percent of its limit on, at it and never below it."""
    limits = limits_of(counters.now_s, tenant=Quota(budget_nano_usd=1000, budget_hard=False))
    counters.reserve(limits, "a", nano_usd=5000)
    counters.reserve(limits, "b", nano_usd=5000)
    [below] = counters.run(Settle("a", used(nano_usd=10 * percent - 1), limits, percent))
    assert below == Done()
    [at] = counters.run(Settle("b", used(nano_usd=1), limits, percent))
    assert at == Done([WindowUse(limits.limits[0], 10 * percent)])


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    limit=st.integers(1, 5000),
    steps=st.lists(
        st.tuples(st.integers(0, 30_000_000), st.integers(1, 600)), min_size=1, max_size=30
    ),
)
def test_rates_are_those_of_exact_arithmetic(
    counters: Counters, limit: int, steps: list[tuple[int, int]]
) -> None:
    """Doubles decide as fractions do, but within a microsecond of the border."""
    counters.redis.flushall()
    limits = limits_of(counters.now_s, key=Quota(input_tpm=limit))
    now_us = int(counters.now_s * 1e6)
    arrival = Fraction(now_us)
    for number, (wait_us, amount) in enumerate(steps):
        now_us += wait_us
        counters.now_s = now_us / 1e6
        cost = Fraction(amount * 60_000_000, limit)
        over = max(arrival, now_us) + cost - (now_us + 60_000_000)
        answer = counters.reserve(limits, f"r{number}", prompt=amount)
        if amount > limit:
            assert isinstance(answer, Denied)
            assert answer.wait_s is None
        elif abs(over) > 2:
            assert isinstance(answer, Held) == (over <= 0)
            if over > 0:
                assert isinstance(answer, Denied)
                assert answer.wait_s is not None
                assert abs(round(answer.wait_s * 1e6) - over) <= 2
        if isinstance(answer, Held):
            arrival = max(arrival, now_us) + cost
            counters.run(Settle(f"r{number}", used(amount)))
