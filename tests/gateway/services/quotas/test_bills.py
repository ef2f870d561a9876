"""What a request is billed and counted for, however much of its prompts was done."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.domain.counters import Reserve, Settle
from gateway.domain.limits import Amounts
from gateway.domain.price import Price
from gateway.domain.quota import Quota
from gateway.domain.usage import Outcome, UsageRow
from gateway.services.quotas.lease import RequestLease, _of_prompt
from gateway.services.quotas.recovery import Recovery
from tests.gateway.services.quotas.scripted import FakeRun, Rig, terms
from tests.gateway.usage_rows import usage_row

pytestmark = pytest.mark.anyio

QUOTA = Quota(input_tpm=100_000, daily_tokens=100_000)


def price(input_nano: int = 1_000_000, cached_nano: int = 300_000) -> Price:
    """A nano-dollar a token of input, unless told."""
    return Price(UUID(int=9), "demo", 1, datetime.now(UTC), input_nano, cached_nano, 2_000_000)


@pytest.fixture
async def rig() -> Rig:
    """Build a rig inside the test's loop."""
    return Rig()


async def leased(
    rig: Rig, *runs: FakeRun, choices: int = 1, of: Price | None = None
) -> RequestLease:
    """Reserve for prompts of 100 tokens with so many choices each."""
    leads = [index % choices == 0 for index in range(len(runs))]
    lease = await rig.quotas.reserve(
        terms(QUOTA, num_prompt_tokens=100 * sum(leads), price=of or price(), leads=leads)
    )
    lease.attach(runs)
    return lease


async def settled(rig: Rig, lease: RequestLease, outcome: Outcome) -> tuple[UsageRow, Amounts]:
    """End a request; return its bill and what the counters were told."""
    lease.settle(outcome)
    await rig.link.flush()
    return rig.bills[-1], rig.counters.asked(Settle)[-1].used


async def test_a_prompt_is_billed_as_far_as_it_came(rig: Rig) -> None:
    """Eighty of its hundred tokens, thirty of them found, and nothing drawn."""
    lease = await leased(rig, FakeRun(prefilled=80, cached=30))
    bill, used = await settled(rig, lease, Outcome.CANCELLED)
    assert bill.outcome is Outcome.CANCELLED
    assert (bill.input_tokens, bill.cached_tokens, bill.output_tokens) == (80, 30, 0)
    assert bill.nano_usd == 50 + 9
    assert (used.requests, used.tokens, used.nano_usd) == (1, 80, 59)


async def test_nothing_done_is_nothing_billed(rig: Rig) -> None:
    """It counts as a request all the same, and its row says how it ended."""
    lease = await leased(rig, FakeRun())
    bill, used = await settled(rig, lease, Outcome.CANCELLED)
    assert (bill.outcome, bill.input_tokens, bill.nano_usd) == (Outcome.CANCELLED, 0, 0)
    assert used == Amounts(requests=1)


async def test_a_fault_of_ours_is_not_billed(rig: Rig) -> None:
    """Whatever was computed before it."""
    lease = await leased(rig, FakeRun(5, prefilled=100, cached=30))
    bill, used = await settled(rig, lease, Outcome.FAILED)
    assert (bill.outcome, bill.input_tokens, bill.output_tokens) == (Outcome.FAILED, 0, 0)
    assert used == Amounts(requests=1)


async def test_choices_have_one_prompt(rig: Rig) -> None:
    """The furthest of them counts, and what the first of them to compute it has found."""
    first, further = FakeRun(prefilled=60, cached=20), FakeRun(prefilled=70, cached=50)
    lease = await leased(rig, FakeRun(), first, further, choices=3)
    bill, _ = await settled(rig, lease, Outcome.CANCELLED)
    assert (bill.input_tokens, bill.cached_tokens) == (70, 20)


HAD = st.integers(0, 100)


# The second found what others than the first had computed.
@example(had=[(50, 0), (100, 100)])
@given(had=st.lists(st.tuples(HAD, HAD), min_size=1, max_size=4))
def test_a_prompt_is_what_its_choices_have_of_it(had: list[tuple[int, int]]) -> None:
    """As much as the furthest, and never more of it computed than they have computed together."""
    choices = [FakeRun(prefilled=max(pair), cached=min(pair)) for pair in had]
    num_prefilled, num_found = _of_prompt(choices)
    assert num_prefilled == max(run.num_prefilled_tokens for run in choices)
    num_computed = sum(run.num_prefilled_tokens - run.num_cached_tokens for run in choices)
    assert 0 <= num_prefilled - num_found <= num_computed
    assert num_found <= num_prefilled
    first = next((run for run in choices if run.num_prefilled_tokens), choices[0])
    assert num_found >= first.num_cached_tokens
    if num_prefilled == first.num_prefilled_tokens:
        assert num_found == first.num_cached_tokens


async def test_each_prompt_is_billed_for_itself(rig: Rig) -> None:
    """One was answered, one was begun, one never was."""
    whole, begun = FakeRun(4, prefilled=100, cached=40), FakeRun(prefilled=30)
    lease = await leased(rig, whole, begun, FakeRun())
    bill, _ = await settled(rig, lease, Outcome.CANCELLED)
    assert (bill.input_tokens, bill.cached_tokens, bill.output_tokens) == (130, 40, 4)


async def test_no_more_was_found_than_was_had(rig: Rig) -> None:
    """A fault can take what had been found: computed again, it is billed at its first price."""
    lease = await leased(rig, FakeRun(prefilled=20, cached=64))
    bill, _ = await settled(rig, lease, Outcome.CANCELLED)
    assert (bill.input_tokens, bill.cached_tokens) == (20, 20)


async def test_a_rate_of_input_weighs_what_was_found(rig: Rig) -> None:
    """At its price over that of input, a fraction as a whole token; windows count all of it."""
    lease = await leased(rig, FakeRun(3, prefilled=100, cached=41))
    _, used = await settled(rig, lease, Outcome.COMPLETED)
    assert used.input_tokens == 59 + 13
    assert used.tokens == 103


async def test_the_journal_settles_the_same(rig: Rig) -> None:
    """Who takes a journal over settles its rows as their own process would have."""
    lease = await leased(rig, FakeRun(3, prefilled=100, cached=41))
    bill, used = await settled(rig, lease, Outcome.COMPLETED)
    recovery = Recovery(lambda row: None, rig.link)
    recovery.settle(bill)
    recovery.settle(usage_row(input_tokens=100, cached_tokens=41, output_tokens=3, nano_usd=5))
    await rig.link.flush()
    taken_over, before_weights = rig.counters.asked(Settle)[-2:]
    assert taken_over.used == used
    assert before_weights.used.input_tokens == 59


async def test_what_is_held_covers_cached_tokens_that_are_dearer(rig: Rig) -> None:
    """Nobody should price them so; a budget is kept all the same."""
    dear = price(cached_nano=3_000_000)
    lease = await leased(rig, FakeRun(200, prefilled=100, cached=100), of=dear)
    bill, _ = await settled(rig, lease, Outcome.COMPLETED)
    [reserve] = rig.counters.asked(Reserve)
    assert bill.nano_usd == 300 + 2 * 200
    assert reserve.amounts.nano_usd == 300 + 2 * reserve.amounts.output_tokens


COUNTS = st.integers(0, 10_000)
NANOS = st.integers(0, 10**9)


@given(cached=COUNTS, input_nano=NANOS, cached_nano=NANOS)
def test_a_cached_token_weighs_its_price(cached: int, input_nano: int, cached_nano: int) -> None:
    """Never less than its price's share of a token of input, by no whole token more, never above
    one token."""
    weight = price(input_nano, cached_nano).weigh_cached(cached)
    assert 0 <= weight <= cached
    if cached_nano < input_nano:
        assert 0 <= weight * input_nano - cached * cached_nano < input_nano
    else:
        assert weight == cached
