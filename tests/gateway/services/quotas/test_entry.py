"""Requests that are counted before their body is read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.domain import Principal
from gateway.domain.counters import Reserve, Settle
from gateway.domain.limits import Amounts, Denied
from gateway.domain.quota import Quota
from gateway.domain.usage import Outcome
from gateway.errors import TenantLimited
from gateway.services.quotas.entry import COUNTED_FIRST_S, Entry
from tests.gateway.services.quotas.scripted import FakeRun, Rig, terms

pytestmark = pytest.mark.anyio

SHORT_BYTES = 100
ONE = Amounts(requests=1)


@pytest.fixture
async def rig() -> Rig:
    """Build a rig inside the test's loop."""
    return Rig()


@pytest.fixture
async def entry(rig: Rig) -> Entry:
    return Entry(rig.quotas, short_bytes=SHORT_BYTES, clock=rig.clock)


def principal_of(quota: Quota) -> Principal:
    return terms(quota).principal


RPM = principal_of(Quota(rpm=10, daily_tokens=1000))


def counted(rig: Rig) -> list[Amounts]:
    return [op.amounts for op in rig.counters.asked(Reserve)]


async def test_a_short_body_is_left_to_its_reservation(rig: Rig, entry: Entry) -> None:
    """The way of nearly all requests costs no operation more."""
    assert not await entry.enter(RPM, SHORT_BYTES)
    assert rig.counters.calls == []


@pytest.mark.parametrize("size_bytes", [SHORT_BYTES + 1, None])
async def test_a_large_body_is_counted_first(
    rig: Rig, entry: Entry, size_bytes: int | None
) -> None:
    """Against the rates of requests alone, and so is one that does not say how large it is."""
    assert await entry.enter(RPM, size_bytes)
    assert counted(rig) == [ONE]
    await rig.link.flush()
    [held], [settled] = rig.counters.asked(Reserve), rig.counters.asked(Settle)
    assert (settled.request_id, settled.used) == (held.request_id, ONE)


async def test_what_was_counted_first_is_counted_once(rig: Rig) -> None:
    """Its reservation and its bill bring no request of their own."""
    lease = await rig.quotas.reserve(replace(terms(Quota(rpm=10)), is_counted=True))
    assert counted(rig)[0].requests == 0
    lease.attach([FakeRun(used=3)])
    lease.refund()
    other = await rig.quotas.reserve(replace(terms(Quota(rpm=10)), is_counted=True))
    other.attach([FakeRun(used=3)])
    other.settle(Outcome.COMPLETED)
    await rig.link.flush()
    assert [op.used.requests for op in rig.counters.asked(Settle)] == [0, 0]


async def test_a_refused_body_is_counted_afterwards_and_the_next_first(
    rig: Rig, entry: Entry
) -> None:
    """For a minute; what was counted is not counted again."""
    entry.refused(RPM, was_counted=False)
    await rig.link.flush()
    assert counted(rig) == [ONE]
    assert await entry.enter(RPM, 1)
    entry.refused(RPM, was_counted=True)
    await rig.link.flush()
    assert counted(rig) == [ONE, ONE]
    rig.clock.now_s += COUNTED_FIRST_S
    assert not await entry.enter(RPM, 1)


async def test_a_key_whose_rate_is_used_up_is_told_before_its_body(rig: Rig, entry: Entry) -> None:
    """With the limit's name and the time to come back."""
    rig.counters.answers[Reserve] = lambda op: Denied(op.limits.limits[0], 2.5, 0, 10)
    with pytest.raises(TenantLimited, match="rpm") as refused:
        await entry.enter(RPM, None)
    assert refused.value.retry_after_s == 2.5


async def test_without_the_counters_this_process_counts(rig: Rig, entry: Entry) -> None:
    """A hard quota does not matter yet: nothing is to be computed. Nothing piles up for later."""
    await rig.open_breaker()
    for _ in range(9):
        assert await entry.enter(RPM, None)
    entry.refused(RPM, was_counted=False)
    with pytest.raises(TenantLimited):
        await entry.enter(RPM, None)
    assert rig.link.num_posted == 0


async def test_without_a_limit_on_requests_nothing_is_counted(rig: Rig, entry: Entry) -> None:
    """There is nothing to count against."""
    unlimited = principal_of(Quota(daily_tokens=1000))
    assert await entry.enter(unlimited, None)
    entry.refused(unlimited, was_counted=False)
    await rig.link.flush()
    assert rig.counters.calls == []
