"""Limits that one process keeps alone: shares of rates and counts, hard quotas closed."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.limits import Amounts, Limits
from gateway.domain.quota import Metric, Quota, Scope, ScopeKind, ScopeQuota
from gateway.errors import CountersUnavailable
from gateway.services.quotas.compile import compile_limits
from gateway.services.quotas.local_limits import LocalLimits
from tests.gateway.services.quotas.scripted import NOON_S

ONE = Amounts(requests=1, concurrency=1)


def limits_of(**quota: int | bool | None) -> Limits:
    scope = Scope(ScopeKind.TENANT, UUID(int=1))
    return compile_limits((ScopeQuota(scope, Quota(**quota)),), NOON_S)  # type: ignore[arg-type]


@given(limit=st.integers(1, 200), num_gateways=st.integers(1, 9))
def test_together_they_let_no_more_through_than_the_rate(limit: int, num_gateways: int) -> None:
    """What all gateways admit at once is the limit at most; a minute later it is there again."""
    limits = limits_of(rpm=limit)
    for now_s in (NOON_S, NOON_S + 61):
        num_admitted = 0
        for gateway in [LocalLimits(num_gateways) for _ in range(num_gateways)]:
            while gateway.reserve(limits, ONE, now_s) is None:
                num_admitted += 1
        if limit >= num_gateways:
            assert limit - num_gateways < num_admitted <= limit
        else:
            # Each lets one through, else a small limit would be none at all.
            assert num_admitted == num_gateways


def test_a_refusal_says_when_there_is_room() -> None:
    """Half of sixty a minute: thirty at once, the next in two seconds."""
    gateway, limits = LocalLimits(2), limits_of(rpm=60)
    for _ in range(30):
        assert gateway.reserve(limits, ONE, NOON_S) is None
    denied = gateway.reserve(limits, ONE, NOON_S)
    assert denied is not None
    assert denied.limit.metric is Metric.RPM
    assert denied.wait_s == pytest.approx(2.0)
    assert gateway.reserve(limits, ONE, NOON_S + 1.99) is not None
    assert gateway.reserve(limits, ONE, NOON_S + 2.0) is None


def test_a_large_request_has_the_whole_share_now_and_then() -> None:
    """One that is above the share passes alone; one above the limit itself never does."""
    gateway, limits = LocalLimits(4), limits_of(input_tpm=100)
    large = Amounts(requests=1, input_tokens=80)
    assert gateway.reserve(limits, large, NOON_S) is None
    denied = gateway.reserve(limits, large, NOON_S)
    assert denied is not None
    assert denied.wait_s
    assert gateway.reserve(limits, large, NOON_S + denied.wait_s) is None
    never = gateway.reserve(limits, Amounts(input_tokens=101), NOON_S + 1000)
    assert never is not None
    assert never.wait_s is None


def test_a_rate_that_changes_keeps_what_was_used_of_it() -> None:
    """Raised, one request of one is one of a thousand; lowered, it is full and no more."""
    gateway = LocalLimits()
    assert gateway.reserve(limits_of(rpm=1), ONE, NOON_S) is None
    raised = limits_of(rpm=1000)
    assert [gateway.reserve(raised, ONE, NOON_S) for _ in range(999)] == [None] * 999
    assert gateway.reserve(raised, ONE, NOON_S) is not None
    denied = gateway.reserve(limits_of(rpm=10), ONE, NOON_S)
    assert denied is not None
    assert denied.wait_s == pytest.approx(6.0)


def test_places_are_divided_too_and_come_back() -> None:
    """Three places for two gateways are two for each; an end frees one."""
    gateway, limits = LocalLimits(2), limits_of(concurrency=3)
    assert [gateway.reserve(limits, ONE, NOON_S) for _ in range(2)] == [None, None]
    denied = gateway.reserve(limits, ONE, NOON_S)
    assert denied is not None
    assert (denied.wait_s, denied.used) == (0.0, 2)
    gateway.release(limits, ONE, Amounts(), NOON_S)
    assert gateway.reserve(limits, ONE, NOON_S) is None


def test_what_must_never_be_passed_lets_nothing_through() -> None:
    """Quotas of tokens and hard budgets are closed; a soft budget refuses nothing."""
    gateway = LocalLimits()
    for hard in (
        limits_of(daily_tokens=10**9),
        limits_of(monthly_tokens=10**9),
        limits_of(budget_nano_usd=10**9, budget_hard=True),
        limits_of(budget_nano_usd=10**9, rpm=10),
    ):
        with pytest.raises(CountersUnavailable):
            gateway.reserve(hard, ONE, NOON_S)
    soft = limits_of(budget_nano_usd=1, budget_hard=False)
    assert gateway.reserve(soft, Amounts(nano_usd=50), NOON_S) is None


def test_what_one_limit_refuses_is_held_of_none() -> None:
    """A request that finds no place costs no rate."""
    gateway, limits = LocalLimits(), limits_of(rpm=2, concurrency=1)
    assert gateway.reserve(limits, ONE, NOON_S) is None
    for _ in range(5):
        denied = gateway.reserve(limits, ONE, NOON_S)
        assert denied is not None
        assert denied.limit.metric is Metric.CONCURRENCY
    gateway.release(limits, ONE, Amounts(requests=1), NOON_S)
    assert gateway.reserve(limits, ONE, NOON_S) is None


def test_more_tokens_are_granted_while_the_share_has_them() -> None:
    """An extension gets what is left of the minute's share, and nothing after that."""
    gateway, limits = LocalLimits(2), limits_of(output_tpm=1000)
    assert gateway.reserve(limits, Amounts(requests=1, output_tokens=200), NOON_S) is None
    assert gateway.extend(limits, 256, NOON_S) == 256
    assert gateway.extend(limits, 256, NOON_S) == 44
    assert gateway.extend(limits, 256, NOON_S) == 0
    assert gateway.extend(limits, 256, NOON_S + 30) == 250


def test_what_was_held_and_not_used_comes_back() -> None:
    """A request that drew a tenth of its grant costs a tenth."""
    gateway, limits = LocalLimits(), limits_of(output_tpm=1000)
    held = Amounts(output_tokens=1000)
    assert gateway.reserve(limits, held, NOON_S) is None
    gateway.release(limits, held, Amounts(output_tokens=100), NOON_S)
    assert gateway.reserve(limits, Amounts(output_tokens=900), NOON_S) is None
    assert gateway.reserve(limits, Amounts(output_tokens=1), NOON_S) is not None


def test_it_begins_anew_once_the_counters_count_again() -> None:
    """After that nothing is held here any more, and an end that is late takes nothing below 0."""
    gateway, limits = LocalLimits(), limits_of(rpm=1, concurrency=1)
    assert gateway.reserve(limits, ONE, NOON_S) is None
    gateway.forget()
    gateway.release(limits, ONE, ONE, NOON_S)
    assert gateway.reserve(limits, ONE, NOON_S) is None
    denied = gateway.reserve(limits, ONE, NOON_S)
    assert denied is not None
