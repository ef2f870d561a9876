"""Items of batches under their limits: what they hold, meet and are billed."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID, uuid4

import msgspec
import pytest

from gateway.domain import Tier
from gateway.domain.batch import ItemResult, ItemRun
from gateway.domain.counters import Keep, Reserve, Settle
from gateway.domain.limits import Amounts, Denied, Told
from gateway.domain.price import Price
from gateway.domain.quota import Metric, Quota
from gateway.domain.usage import ItemRow, Outcome
from gateway.errors import QuotaExhausted, TenantLimited
from gateway.services.batches.worker_fates import Fate, fate_of
from gateway.services.quotas.bill import Meta, bill
from gateway.services.quotas.keeper import QuotaKeeper
from gateway.services.quotas.lease import RequestLease
from tests.gateway.services.quotas.scripted import FakeRun, Rig, terms

pytestmark = pytest.mark.anyio

QUOTA = Quota(rpm=1, input_tpm=1, output_tpm=1, concurrency=1, daily_tokens=9999)
# A nano-dollar a token of input and two of output; half of that in a batch.
PRICE = Price(UUID(int=9), "demo", 1, datetime.now(UTC), 1_000_000, 1_000_000, 2_000_000)
RESULT = ItemResult(ItemRun(uuid4(), 1, 1), False, b"{}")


@pytest.fixture
async def rig() -> Rig:
    """Build a rig inside the test's loop."""
    return Rig()


async def leased(rig: Rig, run: FakeRun, quota: Quota = QUOTA) -> RequestLease:
    """Reserve for an item with a prompt of 100 tokens and 1,000 more."""
    of_batch = terms(quota, num_prompt_tokens=100, price=PRICE, max_tokens=1000)
    lease = await rig.quotas.reserve(replace(of_batch, is_batch=True))
    lease.attach([run])
    return lease


async def test_an_item_meets_quotas_but_no_rates(rig: Rig) -> None:
    """It holds all that it may use at once, at the price of a batch."""
    await leased(rig, FakeRun())
    [reserve] = rig.counters.asked(Reserve)
    metrics = {limit.metric for limit in reserve.limits.limits}
    assert Metric.DAILY_TOKENS in metrics
    assert not metrics & {Metric.RPM, Metric.INPUT_TPM, Metric.OUTPUT_TPM, Metric.CONCURRENCY}
    assert (reserve.amounts.tokens, reserve.amounts.nano_usd) == (1100, 1050)


@pytest.mark.parametrize("quota", [QUOTA, Quota(daily_tokens=0)])
async def test_an_item_is_refused_rather_than_cut_short(rig: Rig, quota: Quota) -> None:
    """What is left of a quota is for items that fit into it, and a quota of nothing may end."""

    left = quota.daily_tokens and 500

    def deny(op: Reserve) -> Denied:
        return Denied(op.limits.limits[0], 60.0, left=left or 0, used=9499, is_exhausted=True)

    rig.counters.answers[Reserve] = deny
    with pytest.raises(QuotaExhausted) as caught:
        await leased(rig, FakeRun(), quota)
    assert ("this one 1100: with a smaller bound" in caught.value.message) is bool(left)
    assert len(rig.counters.asked(Reserve)) == 1


@pytest.mark.parametrize(
    ("quota", "told"),
    [
        (Quota(daily_tokens=1099), "1100, which is above the limit of tenant 'acme' on tokens"),
        (Quota(budget_nano_usd=1000), "USD, which is above the limit"),
    ],
)
async def test_an_item_above_a_whole_window_is_told_so(rig: Rig, quota: Quota, told: str) -> None:
    """No window ever has as much, so its batch need not wait for it; the error says what to do."""

    def deny(op: Reserve) -> Denied:
        return Denied(op.limits.limits[0], 60.0, left=500, used=500, is_exhausted=True)

    rig.counters.answers[Reserve] = deny
    with pytest.raises(TenantLimited) as caught:
        await leased(rig, FakeRun(), quota)
    assert told in caught.value.message
    assert fate_of(caught.value) is Fate.ANSWER
    assert caught.value.code == "insufficient_quota"


async def test_an_item_is_billed_with_its_result(rig: Rig) -> None:
    """One row, at half the price, that carries the result and what it would cost else."""
    lease = await leased(rig, FakeRun(prefilled=100, used=40))
    lease.settle(Outcome.COMPLETED, RESULT)
    lease.settle(Outcome.CANCELLED)
    [row] = rig.bills
    assert isinstance(row, ItemRow)
    assert (row.item, row.is_batch, row.nano_usd) == (RESULT, True, 90)
    assert row.full_nano_usd == 180


@pytest.mark.parametrize("outcome", [Outcome.CANCELLED, Outcome.COMPLETED, Outcome.FAILED])
async def test_an_item_without_a_result_is_nobodys_bill(rig: Rig, outcome: Outcome) -> None:
    """Whatever it had computed: nothing is in the ledger, and nothing stays held."""
    lease = await leased(rig, FakeRun(prefilled=100, used=40))
    lease.settle(outcome)
    await rig.link.flush()
    assert rig.bills == []
    assert rig.counters.asked(Settle)[-1].used == Amounts()


async def test_what_a_dead_worker_held_is_billed_nothing(rig: Rig) -> None:
    """While an item runs, the counters are told of nothing that they could bill or charge."""
    lease = await leased(rig, FakeRun(prefilled=100, used=40))
    rig.clock.now_s += 6
    await QuotaKeeper(rig.quotas, rig.ledger, rig.metrics).renew()
    [(_, told)] = rig.counters.asked(Keep)[-1].told
    assert told == Told()
    lost = bill(uuid4(), 1_000_000, Meta.unpack(lease.terms.meta().packed()), told, Outcome.LOST)
    assert (lost.is_batch, lost.nano_usd, lost.output_tokens) == (True, 0, 0)
    assert not lease.wants_vouching


async def test_what_an_earlier_release_kept_is_no_batch() -> None:
    """Its requests are found with the counters, without the last field."""
    meta = Meta(uuid4(), uuid4(), uuid4(), "demo", Tier.DEFAULT, None)
    packed = msgspec.json.encode(msgspec.to_builtins(meta)[:-1]).decode()
    assert Meta.unpack(packed) == meta
    assert Meta.unpack(replace_last(meta).packed()).is_batch


def replace_last(meta: Meta) -> Meta:
    return msgspec.structs.replace(meta, is_batch=True)
