"""Leases that are renewed, held again, ended and billed, over counters that answer as told."""

from __future__ import annotations

from uuid import uuid4

import msgspec
import pytest

from gateway.domain.counters import (
    Billed,
    Gone,
    HoldAgain,
    Keep,
    Kept,
    Nothing,
    Orphan,
    Reap,
    Reaped,
    Settle,
    Sweep,
    Swept,
)
from gateway.domain.limits import Told
from gateway.domain.quota import Quota
from gateway.domain.tier import Tier
from gateway.domain.usage import Outcome
from gateway.errors import CountersUnavailable, StoreUnavailable
from gateway.services.quotas.bill import Meta
from gateway.services.quotas.keeper import QuotaKeeper
from gateway.services.quotas.lease import used_amounts
from gateway.services.quotas.link import LEASE_S
from tests.gateway.services.quotas.scripted import LOOK, Rig, until
from tests.gateway.usage_rows import usage_row

pytestmark = pytest.mark.anyio


@pytest.fixture
async def rig() -> Rig:
    """Build a rig inside the test's loop."""
    return Rig()


@pytest.fixture
async def keeper(rig: Rig) -> QuotaKeeper:
    """Keep the rig's leases."""
    return QuotaKeeper(rig.quotas, rig.ledger, rig.metrics)


async def test_a_lease_is_renewed_with_what_it_has_used(rig: Rig, keeper: QuotaKeeper) -> None:
    """After five seconds and not before, and then not again for five more."""
    lease, run = await rig.hold()
    run.num_used_tokens = 7
    await keeper.tick()
    assert rig.counters.asked(Keep)[-1].told == []
    rig.clock.now_s += 5
    await keeper.tick()
    assert rig.counters.asked(Keep)[-1].told == [(lease.terms.request_id.hex, (10, 0, 7, 0, 10))]
    rig.clock.now_s += 1
    await keeper.tick()
    assert rig.counters.asked(Keep)[-1].told == []


async def test_many_leases_are_renewed_in_portions(rig: Rig, keeper: QuotaKeeper) -> None:
    """Each once, and no more than fifty in one operation, as everybody waits for it."""
    for _ in range(120):
        await rig.hold()
    rig.clock.now_s += 5
    await keeper.tick()
    told = [op.told for op in rig.counters.asked(Keep)]
    assert [len(part) for part in told] == [50, 50, 20]
    assert len({one[0] for part in told for one in part}) == 120


async def test_local_limits_are_divided_by_the_gateways_alive(
    rig: Rig, keeper: QuotaKeeper
) -> None:
    """Their number is what the counters said last."""
    rig.counters.answers[Keep] = lambda op: Kept(3, {})
    await keeper.tick()
    assert rig.quotas.local.num_gateways == rig.link.num_gateways == 3


async def test_what_the_counters_forgot_is_held_again(rig: Rig, keeper: QuotaKeeper) -> None:
    """With the same amounts; what was settled meanwhile is not."""
    lease, _ = await rig.hold()
    settled, _ = await rig.hold()
    ids = [one.terms.request_id.hex for one in (lease, settled)]

    def forget_both(op: Keep) -> Kept:
        settled.refund()
        return Kept(1, dict.fromkeys(ids, False))

    rig.counters.answers[Keep] = forget_both
    rig.clock.now_s += 5
    await keeper.tick()
    [held] = rig.counters.asked(HoldAgain)
    assert held.request_id == ids[0]
    assert held.amounts == lease.held


async def test_what_was_reaped_ends_where_its_grant_does(rig: Rig, keeper: QuotaKeeper) -> None:
    """Others may have got what it held, so it is not held again."""
    lease, run = await rig.hold()
    id_ = lease.terms.request_id.hex
    rig.counters.answers[Keep] = lambda op: Kept(1, {id_: True})
    rig.clock.now_s += 5
    await keeper.tick()
    assert run.num_finished == 1
    assert lease.stop_causes == {0: "lease_lost"}
    assert rig.counters.asked(HoldAgain) == []


async def test_all_is_held_again_in_a_new_life_of_the_counters(
    rig: Rig, keeper: QuotaKeeper
) -> None:
    """Once each, but for what is counted here alone and what ended; a failure is made up for."""
    await rig.link.ask(LOOK)
    leases = [(await rig.hold())[0] for _ in range(60)]
    await rig.open_breaker()
    await rig.hold()
    leases[0].refund()
    rig.counters.forget()
    await rig.link.probe()
    rig.counters.num_failures = 1
    with pytest.raises(CountersUnavailable):
        await keeper.tick()
    rig.counters.calls.clear()
    await keeper.tick()
    held = [op.request_id for op in rig.counters.asked(HoldAgain)]
    assert sorted(held) == sorted(lease.terms.request_id.hex for lease in leases[1:])
    await keeper.tick()
    assert len(rig.counters.asked(HoldAgain)) == 59


@pytest.mark.parametrize("has_vouched", [False, True])
async def test_what_others_have_got_ends_and_bills_what_was_vouched_for(
    rig: Rig, keeper: QuotaKeeper, has_vouched: bool
) -> None:
    """Counters that begin anew may be loaded without it: they have charged nothing of it."""
    await rig.link.ask(LOOK)
    lease, run = await rig.hold(Quota(daily_tokens=10_000), used=40)
    rig.clock.now_s += 5
    await keeper.tick()
    if has_vouched:
        rig.clock.now_s += LEASE_S - 10
        await keeper.vouch()
    rig.counters.forget()
    rig.counters.answers[HoldAgain] = lambda op: Gone()
    await rig.link.probe()
    await keeper.tick()
    assert run.num_finished == 1
    assert lease.stop_causes == {0: "lease_lost"}
    rig.counters.calls.clear()
    rig.counters.forget()
    await rig.link.probe()
    await keeper.tick()
    assert rig.counters.asked(HoldAgain) == []
    lease.settle(Outcome.COMPLETED)
    [bill] = rig.bills
    assert (bill.input_tokens, bill.output_tokens) == ((10, 40) if has_vouched else (0, 0))


async def test_what_the_counters_do_not_know_is_told_with_its_bill(rig: Rig) -> None:
    """They may have been loaded without it; what was let go of needs no telling."""
    rig.counters.answers[Settle] = lambda op: Nothing()
    lease, _ = await rig.hold(Quota(daily_tokens=10_000), used=40)
    refunded, _ = await rig.hold(Quota(daily_tokens=10_000))
    lease.settle(Outcome.COMPLETED)
    refunded.refund()
    await rig.link.flush()
    first, second, told = rig.counters.asked(Settle)
    assert {first.meta, second.meta} == {""}
    assert (told.request_id, told.used) == (lease.terms.request_id.hex, first.used)
    assert (told.at_us, told.meta) == (lease.at_us, lease.terms.meta().packed())
    assert told.limits is lease.limits


async def test_local_counts_end_when_the_counters_are_back(rig: Rig, keeper: QuotaKeeper) -> None:
    """What was held while they were away is nobody's limit afterwards."""
    quota = Quota(concurrency=1)
    await rig.open_breaker()
    await rig.hold(quota)
    await keeper.tick()
    assert not rig.link.is_open
    await rig.open_breaker()
    await rig.hold(quota)


async def test_what_a_dead_process_was_told_of_is_billed_once(
    rig: Rig, keeper: QuotaKeeper
) -> None:
    """The row says that it was lost; it is taken off the list after it is in the ledger."""
    orphan = _Orphan()
    rig.counters.answers[Sweep] = lambda op: Swept(1, 4, [orphan.listed()])
    rig.ledger.failures = [StoreUnavailable()]
    with pytest.raises(StoreUnavailable):
        await keeper.sweep()
    assert rig.counters.asked(Billed) == []
    for _ in range(2):
        await keeper.sweep()
    [row] = rig.ledger.rows.values()
    assert row.request_id == orphan.id
    assert row.outcome is Outcome.LOST
    assert (row.input_tokens, row.cached_tokens, row.output_tokens) == (100, 20, 30)
    assert row.nano_usd == 4000
    assert row.tenant_id == orphan.meta.tenant_id
    assert rig.counters.asked(Billed)[0] == Billed([orphan.id.hex])
    assert rig.metric("sluice_quota_leases") == 4


async def test_what_is_overdue_is_ended_at_what_the_ledger_has(
    rig: Rig, keeper: QuotaKeeper
) -> None:
    """At what was told where it has nothing; where it does not answer, not at all."""
    billed, unknown = usage_row(), uuid4()
    await rig.ledger.insert([billed])
    overdue = [(billed.request_id.hex, 2_000_000), (unknown.hex, 1_000_000)]
    rig.counters.answers[Sweep] = lambda op: Swept(1, 2, [], overdue)
    rig.counters.answers[Reap] = lambda op: Reaped(2)
    rig.ledger.failures = [StoreUnavailable()]
    with pytest.raises(StoreUnavailable):
        await keeper.sweep()
    assert rig.counters.asked(Reap) == []
    await keeper.sweep()
    told = Told(billed.input_tokens, billed.cached_tokens, billed.output_tokens, billed.nano_usd)
    used = [(billed.request_id.hex, used_amounts(told)), (unknown.hex, None)]
    assert rig.counters.asked(Reap) == [Reap(used)]
    assert rig.metric("sluice_quota_reaped_total") == 4


async def test_a_ledger_that_hangs_lets_no_lease_run_out(rig: Rig) -> None:
    """While a dead process cannot be billed the living ones go on renewing."""
    keeper = QuotaKeeper(rig.quotas, rig.ledger, rig.metrics, tick_s=0.005, sweep_s=0.005)
    rig.counters.answers[Sweep] = lambda op: Swept(1, 1, [_Orphan().listed()])
    rig.ledger.gate.clear()
    async with keeper.running():
        await until(lambda: bool(rig.counters.asked(Sweep)))
        num_kept = len(rig.counters.asked(Keep))
        await until(lambda: len(rig.counters.asked(Keep)) > num_kept + 3)
    assert len(rig.counters.asked(Sweep)) == 1


async def test_the_work_goes_on_after_a_fault(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """A round that fails, however it does, is followed by the next."""
    keeper = QuotaKeeper(rig.quotas, rig.ledger, rig.metrics, tick_s=0.005)

    def fail(op: Keep) -> Kept:
        raise RuntimeError("a bug")

    rig.counters.answers[Keep] = fail
    async with keeper.running():
        await until(lambda: len(rig.counters.asked(Keep)) > 3)
    assert "quota upkeep failed" in caplog.text


async def test_what_is_posted_last_is_sent_on_leaving(rig: Rig, keeper: QuotaKeeper) -> None:
    """The ends of the last requests reach the counters before the process goes."""
    async with keeper.running():
        lease, _ = await rig.hold()
        lease.settle(Outcome.COMPLETED)
        assert rig.counters.asked(Settle) == []
    assert [op.request_id for op in rig.counters.asked(Settle)] == [lease.terms.request_id.hex]


class _Orphan:
    """A request whose process died, as the counters list it."""

    def __init__(self) -> None:
        self.id = uuid4()
        self.meta = Meta(uuid4(), uuid4(), uuid4(), "demo", Tier.DEFAULT, None)

    def listed(self) -> Orphan:
        meta = msgspec.json.encode(self.meta).decode()
        return Orphan(self.id.hex, 1_000_000, meta, Told(100, 20, 30, 4000))
