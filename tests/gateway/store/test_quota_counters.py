"""Every limit counted in a real Valkey: what is let through, what is refused, when to return."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis

from gateway.domain.quota import Quota, Window
from gateway.services.quotas.wire import BASE_S
from tests.gateway.store.quota_harness import LEASE_S, Counters, limits_of, used


@pytest.fixture
def counters(redis_url: str) -> Counters:
    return Counters(Redis.from_url(redis_url))


def test_a_rate_lets_its_limit_through_at_once_and_then_refills(counters: Counters) -> None:
    """Sixty a minute: sixty at once, then one a second, and the wait that is told is true."""
    limits = limits_of(counters.now_s, key=Quota(rpm=60))
    for number in range(60):
        assert counters.reserve(limits, f"r{number}")[0] == "held"
    kind, _, _, wait_us, left, taken = counters.reserve(limits, "more")
    assert (kind, left, taken) == ("denied", 0, 60)
    assert 999_000 <= wait_us <= 1_000_001
    counters.now_s += (wait_us - 1000) / 1e6
    assert counters.reserve(limits, "early")[0] == "denied"
    counters.now_s += 1001 / 1e6
    assert counters.reserve(limits, "then")[0] == "held"


def test_all_limits_or_none(counters: Counters) -> None:
    """What one limit refuses costs nothing of the others."""
    limits = limits_of(
        counters.now_s, key=Quota(rpm=10, concurrency=5), tenant=Quota(daily_tokens=100)
    )
    assert counters.reserve(limits, "a", prompt=60, output=20)[0] == "held"
    before = counters.look(limits)
    denied = counters.reserve(limits, "b", prompt=60, output=20)
    assert denied[:4] == ["denied", 2, 1, 0]
    assert counters.look(limits) == before


def test_a_held_window_is_a_wait_and_a_used_one_is_not(counters: Counters) -> None:
    """While others hold the rest it may still come; once it is used, not before the next window."""
    limits = limits_of(counters.now_s, tenant=Quota(daily_tokens=100))
    counters.reserve(limits, "a", prompt=10, output=70)
    assert counters.reserve(limits, "b", prompt=10, output=20)[3:] == [0, 20, 0]
    counters.run(("settle", "a", used(10, 70)))
    assert counters.reserve(limits, "c", prompt=10, output=20)[3:] == [-2, 20, 80]
    assert counters.reserve(limits, "d", prompt=10, output=10)[0] == "held"


def test_a_request_above_a_limit_never_fits(counters: Counters) -> None:
    """A prompt longer than a minute's tokens is told so, not to wait."""
    limits = limits_of(counters.now_s, key=Quota(input_tpm=100))
    assert counters.reserve(limits, "a", prompt=101)[3] == -1
    assert counters.reserve(limits, "b", prompt=100)[0] == "held"


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
        assert answer[0] == "denied"


def test_what_was_not_used_comes_back(counters: Counters) -> None:
    """Settling below the reservation refunds rates, counts and windows what was not used."""
    quota = Quota(
        input_tpm=1000, output_tpm=1000, concurrency=2, monthly_tokens=1000, budget_nano_usd=5000
    )
    limits = limits_of(counters.now_s, tenant=quota)
    counters.reserve(limits, "a", prompt=100, output=256, nano_usd=900)
    counters.run(("settle", "a", used(100, 6, 300)))
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
    assert counters.reserve(limits, "a", prompt=10, output=10)[:2] == first[:2]
    assert counters.run(("settle", "a", used(10, 5)))[0][0] == "done"
    seen = counters.look(limits)
    assert counters.run(("settle", "a", used(10, 5)))[0] == ["nothing"]
    assert counters.reserve(limits, "a", prompt=10, output=10) == ["settled"]
    assert counters.look(limits) == seen


def test_an_extension_gets_what_fits(counters: Counters) -> None:
    """The last tokens of a quota are granted too, and then none."""
    limits = limits_of(counters.now_s, tenant=Quota(daily_tokens=100, budget_nano_usd=1000))
    counters.reserve(limits, "a", prompt=10, output=40, nano_usd=400)
    more = ("extend", "a", 64, 640, LEASE_S * 1_000_000, (10, 0, 30, 0))
    assert counters.run(more) == [["held", 50]]
    assert counters.run(more) == [["held", 0]]
    assert [row["left"] for row in counters.look(limits)] == [0, 100]


def test_an_abandoned_lease_is_charged_what_was_told_of_it(counters: Counters) -> None:
    """After its lease a hold is gone; what was told is used and left to be billed, once."""
    limits = limits_of(counters.now_s, tenant=Quota(daily_tokens=1000, concurrency=3))
    counters.reserve(limits, "told", prompt=100, output=256)
    counters.reserve(limits, "untold", prompt=100, output=256)
    counters.run(("keep", "g", LEASE_S * 1_000_000, [("told", 100, 20, 60, 7)]))
    counters.now_s += LEASE_S + 1
    [[_, num_reaped, num_leases, orphans]] = counters.run(("sweep", 10))
    assert (num_reaped, num_leases) == (2, 0)
    assert [orphans[0], orphans[1][2]] == ["told", [100, 20, 60, 7]]
    assert len(orphans) == 2
    assert [(row["used"], row["held"]) for row in counters.look(limits)] == [(0, 0), (160, 0)]
    counters.run(("billed", ["told"]))
    assert counters.run(("sweep", 10))[0][3] == []


def test_a_late_settle_corrects_what_was_reaped(counters: Counters) -> None:
    """A row that was found after its process died replaces the estimate, once."""
    limits = limits_of(counters.now_s, tenant=Quota(daily_tokens=1000))
    counters.reserve(limits, "a", prompt=100, output=256)
    counters.run(("keep", "g", LEASE_S * 1_000_000, [("a", 100, 0, 60, 0)]))
    counters.now_s += LEASE_S + 1
    counters.run(("sweep", 10))
    assert counters.run(("settle", "a", used(100, 90)))[0][0] == "done"
    assert counters.run(("settle", "a", used(100, 90)))[0] == ["nothing"]
    assert counters.look(limits)[0]["used"] == 190


def test_keeping_tells_what_is_no_longer_held(counters: Counters) -> None:
    """A lease that was reaped, or forgotten, is told from one that was settled."""
    limits = limits_of(counters.now_s, tenant=Quota(daily_tokens=1000))
    for id_ in ("reaped", "settled"):
        counters.reserve(limits, id_, prompt=1, output=1)
    counters.run(("settle", "settled", used(1, 1)))
    counters.now_s += LEASE_S + 1
    told = [(id_, 1, 0, 0, 0) for id_ in ("reaped", "settled", "forgotten")]
    assert counters.run(("keep", "g", 1, told))[0][2] == ["reaped", 1, "forgotten", 0]


def test_a_new_day_is_a_new_slot(counters: Counters) -> None:
    """At midnight the quota is whole; who began before still counts in the day that it began."""
    counters.now_s = BASE_S + 86_400 * 10 - 1
    before = limits_of(counters.now_s, tenant=Quota(daily_tokens=100))
    counters.reserve(before, "late", prompt=10, output=50)
    counters.now_s += 2
    assert counters.reserve(before, "stale", prompt=1, output=1) == ["stale"]
    after = limits_of(counters.now_s, tenant=Quota(daily_tokens=100))
    assert counters.reserve(after, "whole", prompt=50, output=50)[0] == "held"
    counters.run(("settle", "late", used(10, 40)))
    assert [(row["used"], row["held"]) for row in counters.look(after)] == [(0, 100)]


def test_a_rolling_window_forgets_slot_by_slot(counters: Counters) -> None:
    """What was used leaves the last 24 hours an hour at a time, and never early."""
    counters.now_s = BASE_S + 86_400 * 20 + 600
    quota = Quota(budget_nano_usd=100, budget_window=Window("24h"))
    limits = limits_of(counters.now_s, tenant=quota)
    counters.reserve(limits, "a", nano_usd=60)
    counters.run(("settle", "a", used(nano_usd=60)))
    for hours, verdict in ((1, "denied"), (24, "denied"), (25, "held")):
        counters.now_s = BASE_S + 86_400 * 20 + 600 + hours * 3600
        limits = limits_of(counters.now_s, tenant=quota)
        assert counters.reserve(limits, f"b{hours}", nano_usd=60)[0] == verdict, hours


def test_hard_limits_wait_until_everybody_has_come_back(counters: Counters) -> None:
    """After the counters were lost nothing hard passes until they are built; rates do."""
    hard = limits_of(counters.now_s, tenant=Quota(daily_tokens=100))
    rates = limits_of(counters.now_s, tenant=Quota(rpm=100))
    counters.run(("look", rates.packed))
    counters.redis.delete("sluice:q:epoch")
    counters.redis.fcall(counters.library.name, 0, *_found(3))
    assert counters.reserve(hard, "a", prompt=1, output=1)[0] == "building"
    assert counters.reserve(rates, "b", prompt=1, output=1)[0] == "held"
    counters.now_s += 4
    assert counters.reserve(hard, "a", prompt=1, output=1)[0] == "held"


def test_a_soft_budget_refuses_nothing(counters: Counters) -> None:
    """It is counted beyond its amount."""
    limits = limits_of(counters.now_s, tenant=Quota(budget_nano_usd=10, budget_hard=False))
    assert counters.reserve(limits, "a", nano_usd=50)[0] == "held"
    [[_, windows]] = counters.run(("settle", "a", used(nano_usd=50)))
    assert windows == [1, 1, 50]


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
            assert answer[3] == -1
        elif abs(over) > 2:
            assert (answer[0] == "held") == (over <= 0)
            if over > 0:
                assert abs(answer[3] - over) <= 2
        if answer[0] == "held":
            arrival = max(arrival, now_us) + cost
            counters.run(("settle", f"r{number}", used(amount)))


def _found(build_s: int) -> list[bytes]:
    from gateway.store.quota_counters import pack

    return pack([("found", "again", build_s * 1_000_000)])
