"""The audit of the prefix cache: what it calls clean, leaky, and no data."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable

import pytest

from gateway.doctor.cache_audit import audit_cache, judge
from gateway.doctor.finding import Level
from gateway.doctor.two_samples import distance, p_value


class Cache:
    """A server of our own: a prompt that was sent before is quicker, to whom `sees` says."""

    def __init__(self, sees: Callable[[int, int], bool], *, told: bool = False) -> None:
        self._sees = sees
        self._told = told
        self._sent: dict[str, set[int]] = defaultdict(set)
        self._drawn = random.Random(5)

    def send(self, tenant: int, prompt: str) -> tuple[float, int]:
        is_found = any(self._sees(tenant, owner) for owner in self._sent[prompt])
        self._sent[prompt].add(tenant)
        seconds = self._drawn.gauss(0.010 if is_found else 0.020, 0.002)
        return seconds, 64 if is_found and self._told else 0


def test_tenants_apart_are_clean() -> None:
    """A cache that each tenant has for itself is told from fresh prompts by its owner alone."""
    finding = judge(Cache(lambda tenant, owner: tenant == owner).send, 40)
    assert finding.level is Level.OK
    assert "across tenants" in finding.found


@pytest.mark.parametrize("told", [False, True])
def test_a_cache_that_all_share_is_found(told: bool) -> None:
    """By its times alone, and by the tokens that it owns up to."""
    finding = judge(Cache(lambda tenant, owner: True, told=told).send, 40)
    assert finding.level is Level.BROKEN
    assert finding.mend is not None


def test_a_cache_that_is_off_is_no_verdict() -> None:
    """Where a tenant's own prompts show no signal, that others' show none means nothing."""
    finding = judge(Cache(lambda tenant, owner: False).send, 40)
    assert finding.level is Level.WARNING
    assert "no data" in finding.found


def test_without_a_server_there_is_no_data() -> None:
    """Nothing is started for it, and nothing called clean."""
    finding = audit_cache(None)
    assert (finding.level, "no data" in finding.found) == (Level.WARNING, True)


def test_the_two_samples_test_is_the_textbooks() -> None:
    """Distances are exact, and values those that scipy's `ks_2samp` has (asymptotic) to a tenth."""
    assert distance([1, 2, 3, 4], [1, 2, 3, 4]) == 0
    assert distance([1, 1, 2], [3, 4]) == 1
    assert distance([1, 2, 3, 4], [3, 4, 5, 6]) == 0.5
    assert p_value([1] * 30, [1] * 30) == 1.0
    assert p_value(list(range(60)), list(range(100, 160))) < 1e-20
    # Critical values of the Kolmogorov distribution: 1.358 is 5 %, 1.628 is 1 %.
    half = list(range(1000))
    for shift, expected in ((61, 0.05), (73, 0.01)):
        assert p_value(half, [value + shift for value in half]) == pytest.approx(expected, rel=0.15)
