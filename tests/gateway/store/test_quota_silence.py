"""Leases that ran out while nobody could call: they are not abandoned."""

from __future__ import annotations

import pytest
from redis import Redis

from gateway.domain.counters import Held, Keep, Settle
from gateway.domain.limits import Denied, Told
from gateway.domain.quota import Quota
from tests.gateway.store.quota_harness import LEASE_S, Counters, limits_of, used

RETURN_S = 3


class Silent:
    """Counters of which 60 of 100 tokens are held when nobody calls them any more."""

    def __init__(self, redis: Redis) -> None:
        self.counters = Counters(redis)
        self.limits = limits_of(self.counters.now_s, tenant=Quota(daily_tokens=100))
        self.counters.reserve(self.limits, "a", output=60)
        self.counters.silence = True
        self.counters.now_s += 2 * LEASE_S

    @property
    def held(self) -> int:
        [row] = self.counters.look(self.limits)
        return int(row["held"])

    def sweep(self) -> int:
        """Return how many leases were reaped."""
        return self.counters.sweep()


@pytest.fixture
def silent(redis_url: str) -> Silent:
    return Silent(Redis.from_url(redis_url))


def test_nobody_gets_what_others_had_no_time_to_settle(silent: Silent) -> None:
    """The first to call again reaps nothing, so that nothing of it can be had twice."""
    assert silent.sweep() == 0
    assert isinstance(silent.counters.reserve(silent.limits, "b", output=50), Denied)
    silent.counters.now_s += RETURN_S - 1
    silent.counters.run(Settle("a", used(output=60)))
    assert isinstance(silent.counters.reserve(silent.limits, "b", output=40), Held)


def test_whoever_is_back_in_time_goes_on(silent: Silent) -> None:
    """A lease that is renewed after the silence is as good as before."""
    silent.counters.run(Keep("gateway", LEASE_S * 1_000_000, [("a", Told(1, 0, 1, 0))]))
    silent.counters.now_s += RETURN_S + 1
    assert silent.sweep() == 0
    assert silent.held == 60


def test_what_nobody_comes_back_for_is_reaped(silent: Silent) -> None:
    """A little later than at its time."""
    silent.sweep()
    silent.counters.now_s += RETURN_S
    assert silent.sweep() == 1
    assert silent.held == 0


def test_a_lease_is_reaped_at_its_time_while_others_call(redis_url: str) -> None:
    """Only a silence is waited out."""
    counters = Counters(Redis.from_url(redis_url))
    limits = limits_of(counters.now_s, tenant=Quota(daily_tokens=100))
    counters.run()
    counters.now_s += RETURN_S
    counters.reserve(limits, "a", output=60)
    counters.now_s += LEASE_S + 0.2
    counters.sweep()
    [row] = counters.look(limits)
    assert row["held"] == 0
