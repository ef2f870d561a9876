"""Leases that outlived their process's silence: what is billed of a request that was reaped."""

from __future__ import annotations

import asyncio
import logging

import pytest

from gateway.domain.counters import Keep, Kept, Settle
from gateway.domain.limits import Told
from gateway.domain.quota import Quota
from gateway.domain.usage import Outcome
from gateway.services.quotas.keeper import QuotaKeeper
from gateway.services.quotas.link import LEASE_S
from tests.gateway.services.quotas.scripted import Rig

pytestmark = pytest.mark.anyio

UNHEARD_S = LEASE_S - 10
HARD, RATES = Quota(daily_tokens=10_000), Quota(output_tpm=100_000)


@pytest.fixture
async def rig() -> Rig:
    """Build a rig inside the test's loop."""
    return Rig()


@pytest.fixture
async def keeper(rig: Rig) -> QuotaKeeper:
    """Keep the rig's leases."""
    return QuotaKeeper(rig.quotas, rig.ledger, rig.metrics)


async def test_a_lapsed_lease_bills_what_the_counters_were_told(
    rig: Rig, keeper: QuotaKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    """Others may have used what it held since: the ledger gets no more than they were charged."""
    lease, run = await rig.hold(HARD, used=40)
    rig.clock.now_s += 5
    await keeper.tick()
    run.num_used_tokens = 90
    rig.clock.now_s += LEASE_S
    with caplog.at_level(logging.WARNING):
        lease.settle(Outcome.COMPLETED)
    [bill] = rig.bills
    assert (bill.input_tokens, bill.output_tokens) == (10, 40)
    assert "outlived its lease" in caplog.text
    await rig.link.flush()
    [settled] = rig.counters.asked(Settle)
    assert settled.used.tokens == 50


async def test_one_that_was_never_told_of_is_billed_nothing(rig: Rig) -> None:
    """It was reaped as if it had used nothing."""
    lease, _ = await rig.hold(HARD, used=90)
    rig.clock.now_s += LEASE_S
    lease.settle(Outcome.COMPLETED)
    [bill] = rig.bills
    assert (bill.input_tokens, bill.output_tokens) == (0, 0)


async def test_a_lease_that_was_found_reaped_bills_no_more_either(
    rig: Rig, keeper: QuotaKeeper
) -> None:
    """Whatever the clocks say; and nobody asks for it again."""
    lease, run = await rig.hold(HARD, used=40)
    rig.clock.now_s += 5
    await keeper.tick()
    gone = {lease.terms.request_id.hex: True}
    rig.counters.answers[Keep] = lambda op: Kept(1, gone if op.told else {})
    rig.clock.now_s += 5
    await keeper.tick()
    rig.clock.now_s += 1
    await keeper.tick()
    assert rig.counters.asked(Keep)[-1].told == []
    run.num_used_tokens = 90
    lease.settle(Outcome.COMPLETED)
    assert rig.bills[0].output_tokens == 40


async def test_a_lease_in_time_bills_all(rig: Rig, keeper: QuotaKeeper) -> None:
    """However long the request runs, and where an extension was the last that was told."""
    renewed, run = await rig.hold(HARD, used=1)
    for _ in range(20):
        rig.clock.now_s += 5
        await keeper.tick()
    run.num_used_tokens = 90
    renewed.settle(Outcome.COMPLETED)
    assert rig.bills[0].output_tokens == 90


async def test_rates_are_nobodys_to_lose(rig: Rig) -> None:
    """Without a hard quota there is nothing that could be passed: all of it is billed."""
    lease, _ = await rig.hold(RATES, used=90)
    rig.clock.now_s += 2 * LEASE_S
    lease.settle(Outcome.COMPLETED)
    assert rig.bills[0].output_tokens == 90


async def test_what_is_unheard_is_vouched_for_and_billed(rig: Rig, keeper: QuotaKeeper) -> None:
    """Once, for all that it was granted, which whoever reaps leaves alone then."""
    lease, run = await rig.hold(HARD, used=40)
    rig.clock.now_s += UNHEARD_S
    for _ in range(2):
        await keeper.vouch()
    [voucher] = rig.ledger.rows.values()
    assert voucher.outcome is Outcome.LOST
    assert (voucher.input_tokens, voucher.output_tokens) == (10, 256)
    run.num_used_tokens = 256
    rig.clock.now_s += LEASE_S
    lease.settle(Outcome.COMPLETED)
    [bill] = rig.bills
    assert (bill.input_tokens, bill.output_tokens) == (10, 256)
    assert (bill.request_id, bill.at) == (voucher.request_id, voucher.at)


async def test_nobody_vouches_before_it_is_needed(rig: Rig, keeper: QuotaKeeper) -> None:
    """For what was renewed, has no hard limit, has ended, or is too late."""
    renewed, _ = await rig.hold(HARD)
    await rig.hold(RATES)
    ended, _ = await rig.hold(HARD)
    ended.settle(Outcome.COMPLETED)
    rig.clock.now_s += UNHEARD_S
    renewed.was_told(Told(), rig.link.now_s())
    await keeper.vouch()
    assert rig.ledger.rows == {}
    rig.clock.now_s += LEASE_S
    await keeper.vouch()
    assert rig.ledger.rows == {}


async def test_a_voucher_that_came_too_late_is_none(rig: Rig, keeper: QuotaKeeper) -> None:
    """Whoever reaped may have looked before."""
    lease, run = await rig.hold(HARD, used=40)
    rig.clock.now_s += UNHEARD_S
    rig.ledger.gate.clear()
    vouching = asyncio.create_task(keeper.vouch())
    await asyncio.sleep(0)
    rig.clock.now_s += LEASE_S
    rig.ledger.gate.set()
    await vouching
    run.num_used_tokens = 90
    lease.settle(Outcome.COMPLETED)
    assert rig.bills[0].output_tokens == 0


async def test_what_was_granted_after_a_voucher_is_not_in_it(rig: Rig, keeper: QuotaKeeper) -> None:
    """The counters came back, and went away again."""
    lease, run = await rig.hold(HARD, used=40)
    rig.clock.now_s += UNHEARD_S
    await keeper.vouch()
    lease.was_told(Told(10, 0, 300, 0), rig.link.now_s())
    run.num_used_tokens = 400
    rig.clock.now_s += LEASE_S
    lease.settle(Outcome.COMPLETED)
    assert rig.bills[0].output_tokens == 300
