"""Requests while the counters are away, forgetful or late: what they get and what they leave."""

from __future__ import annotations

import asyncio
import time

import pytest

from gateway.domain.counters import (
    Answer,
    Building,
    Extend,
    Extended,
    Gone,
    Load,
    Reserve,
    Settle,
    Unknown,
)
from gateway.domain.quota import Quota
from gateway.domain.usage import Outcome
from gateway.errors import CountersUnavailable, StoreUnavailable, TenantLimited
from gateway.services.quotas.link import LEASE_S
from tests.gateway.services.quotas.scripted import Rig, until

pytestmark = pytest.mark.anyio

HARD = Quota(daily_tokens=10_000)
# The grant at the start is 256; more is asked for when 128 are left.
FIRST_GRANT, ASKS_AT = 256, 128


@pytest.fixture
async def rig() -> Rig:
    """Build a rig inside the test's loop."""
    return Rig()


async def test_rates_are_kept_alone_and_hard_quotas_closed(rig: Rig) -> None:
    """From the first failure on, before the breaker opens."""
    rig.counters.num_failures = 4
    lease, _ = await rig.hold(Quota(rpm=1000))
    assert lease.is_local
    with pytest.raises(CountersUnavailable) as refused:
        await rig.hold(HARD)
    assert refused.value.retry_after_s
    assert not rig.link.is_open


async def test_a_reservation_that_may_have_been_made_is_taken_back(rig: Rig) -> None:
    """Whoever is refused, or served without it, holds nothing with the counters."""
    rig.counters.num_failures = 1
    lease, _ = await rig.hold()
    await rig.link.flush()
    [taken_back] = rig.counters.asked(Settle)
    assert taken_back.request_id == lease.terms.request_id.hex
    assert not any(taken_back.used)


async def test_what_was_never_sent_leaves_nothing_to_send(rig: Rig) -> None:
    """However long the counters are away, no queue grows by the requests that come meanwhile."""
    await rig.open_breaker()
    for _ in range(100):
        lease, _ = await rig.hold()
        lease.settle(Outcome.COMPLETED)
    assert rig.link.num_posted == 0
    assert len(rig.bills) == 100


async def test_a_place_that_was_held_alone_is_free_after_its_request(rig: Rig) -> None:
    """Whether it was billed or refunded."""
    await rig.open_breaker()
    one_at_a_time = Quota(concurrency=1)
    for end in (lambda lease: lease.settle(Outcome.COMPLETED), lambda lease: lease.refund()):
        lease, _ = await rig.hold(one_at_a_time)
        with pytest.raises(TenantLimited):
            await rig.hold(one_at_a_time)
        end(lease)
    await rig.hold(one_at_a_time)


async def test_who_leaves_while_he_is_reserved_for_holds_nothing(rig: Rig) -> None:
    """It may have been held by then: it is taken back."""
    rig.counters.gate.clear()
    leaving = asyncio.create_task(rig.hold())
    await until(lambda: bool(rig.counters.calls))
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    rig.counters.gate.set()
    await rig.link.flush()
    [held] = rig.counters.asked(Reserve)
    [taken_back] = rig.counters.asked(Settle)
    assert taken_back.request_id == held.request_id
    assert not any(taken_back.used)
    assert list(rig.quotas.live) == []


async def test_a_local_refusal_is_a_limit_like_any_other(rig: Rig) -> None:
    """It is counted, and says when to return."""
    await rig.open_breaker()
    await rig.hold(Quota(rpm=1000))
    never = Quota(rpm=0)
    with pytest.raises(TenantLimited):
        await rig.hold(never)


async def test_a_ledger_that_hangs_refuses_soon() -> None:
    """A window that is not counted yet needs the ledger; nobody waits for a database for long."""
    rig = Rig(load_s=0.01)
    rig.counters.answers[Reserve] = lambda op: Unknown()
    rig.ledger.gate.clear()
    with pytest.raises(CountersUnavailable):
        await rig.hold(HARD)
    rig.ledger.gate.set()
    rig.ledger.failures = [StoreUnavailable()]
    with pytest.raises(CountersUnavailable):
        await rig.hold(HARD)
    assert rig.counters.asked(Load) == []


async def test_a_running_request_of_rates_goes_on_alone(rig: Rig) -> None:
    """It is granted more by this process, and its end is told when the counters are back."""
    lease, run = await rig.hold(Quota(output_tpm=100_000), used=ASKS_AT)
    await rig.open_breaker()
    lease.note_output(0, ASKS_AT, False)
    await until(lambda: bool(run.granted))
    assert run.granted == [2 * FIRST_GRANT]
    lease.settle(Outcome.COMPLETED)
    assert rig.counters.asked(Settle) == []
    await rig.link.probe()
    [settled] = rig.counters.asked(Settle)
    assert settled.used.output_tokens == ASKS_AT


async def test_a_running_request_of_a_hard_quota_waits_at_its_grant(rig: Rig) -> None:
    """It is granted more once they answer; in time before its lease runs out it ends instead."""
    (waits, run), (ends, ended) = await rig.hold(HARD), await rig.hold(HARD)
    await rig.open_breaker()
    waits.note_output(0, ASKS_AT, False)
    await asyncio.sleep(0.03)
    assert run.granted == []
    await rig.link.probe()
    await until(lambda: bool(run.granted))
    assert run.granted == [2 * FIRST_GRANT]
    await rig.open_breaker()
    ends.note_output(0, ASKS_AT, False)
    rig.clock.now_s += LEASE_S - 5
    await until(lambda: bool(ended.num_finished))
    assert ends.stop_causes == {0: "quota"}
    assert ended.granted == []


async def test_a_request_that_was_forgotten_is_granted_more_once_it_is_held_again(rig: Rig) -> None:
    """Counters that lost everything are no quota that is used up."""
    lease, run = await rig.hold(Quota(output_tpm=100_000))
    is_known = False

    def extend(op: Extend) -> Answer:
        return Extended(op.tokens) if is_known else Gone()

    rig.counters.answers[Extend] = extend
    lease.note_output(0, ASKS_AT, False)
    await until(lambda: len(rig.counters.asked(Extend)) > 3)
    assert lease.stop_causes == {}
    is_known = True
    await until(lambda: bool(run.granted))
    assert run.granted == [2 * FIRST_GRANT]


async def test_a_request_that_was_reaped_is_granted_nothing_more(rig: Rig) -> None:
    """Whoever finds it reaped ends it, and nobody asks for it any longer."""
    lease, run = await rig.hold()
    rig.counters.answers[Extend] = lambda op: Gone()
    lease.note_output(0, ASKS_AT, False)
    await until(lambda: bool(rig.counters.asked(Extend)))
    lease.lose()
    await asyncio.sleep(0.02)
    num_asked = len(rig.counters.asked(Extend))
    await asyncio.sleep(0.02)
    assert len(rig.counters.asked(Extend)) == num_asked
    assert lease.stop_causes == {0: "lease_lost"}
    assert run.granted == []


async def test_a_request_whose_quota_is_not_counted_yet_is_granted_more_once_it_is(
    rig: Rig,
) -> None:
    """It waits until the counters are built, and has its window loaded where nobody else did."""
    lease, run = await rig.hold(HARD)
    answers: list[Answer] = [Building(1.0), Unknown(), Extended(200)]
    rig.counters.answers[Extend] = lambda op: answers.pop(0)
    lease.note_output(0, ASKS_AT, False)
    await until(lambda: bool(run.granted))
    assert run.granted == [FIRST_GRANT + 200]
    assert len(rig.counters.asked(Load)) == 1
    assert lease.stop_causes == {}


async def test_a_window_that_its_limits_do_not_name_is_waited_for(rig: Rig) -> None:
    """One that was set later, for who begins next to load: it asks as often as it may."""
    lease, run = await rig.hold(HARD)
    rig.counters.answers[Extend] = lambda op: Unknown()
    lease.note_output(0, ASKS_AT, False)
    await until(lambda: len(rig.counters.asked(Extend)) == 3)
    began_s, num_asked = time.monotonic(), len(rig.counters.asked(Extend))
    await until(lambda: len(rig.counters.asked(Extend)) == num_asked + 10)
    assert time.monotonic() - began_s > 10 * 0.005
    rig.clock.now_s += 60
    await until(lambda: bool(lease.stop_causes))
    assert run.granted == []
