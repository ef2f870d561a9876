"""A counter that is corrected from the ledger, once, whatever comes in between."""

from __future__ import annotations

import pytest
from redis import Redis

from gateway.domain.counters import Answer, Done, Nothing, Repair, Settle
from gateway.domain.quota import Quota
from tests.gateway.store.quota_harness import Counters, limits_of, used


class Counted:
    """A tenant's day of which 100 tokens are used."""

    def __init__(self, counters: Counters) -> None:
        self.counters = counters
        self.limits = limits_of(counters.now_s, tenant=Quota(daily_tokens=1000))
        counters.reserve(self.limits, "a", output=100)
        counters.run(Settle("a", used(output=100)))

    def repair(self, seen: int | None, more: int) -> Answer:
        [limit] = self.limits.limits
        [answer] = self.counters.run(Repair(limit, seen, more))
        return answer

    @property
    def used(self) -> int:
        [row] = self.counters.look(self.limits)
        return int(row["used"])


@pytest.fixture
def counted(redis_url: str) -> Counted:
    return Counted(Counters(Redis.from_url(redis_url)))


def test_a_counter_that_is_behind_is_raised_once(counted: Counted) -> None:
    """An operation that is sent again, or by another gateway that saw the same, does nothing."""
    assert counted.repair(None, 30) == Done()
    assert counted.repair(None, 30) == Nothing()
    assert counted.used == 130


def test_it_is_raised_however_much_is_used_meanwhile(counted: Counted) -> None:
    """What was missing is missing still."""
    counted.counters.reserve(counted.limits, "b", output=5)
    counted.counters.run(Settle("b", used(output=5)))
    assert counted.repair(None, 30) == Done()
    assert counted.used == 135


def test_a_counter_that_is_ahead_is_lowered_as_it_was_seen(counted: Counted) -> None:
    """One that has changed since is left alone, and may be lowered as it is now."""
    assert counted.repair(99, -30) == Nothing()
    assert counted.used == 100
    assert counted.repair(100, -30) == Done()
    assert counted.used == 70
