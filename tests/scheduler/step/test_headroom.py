"""The last eighth of slots and blocks: who leaves it, who takes it, who gives it back."""

from __future__ import annotations

from array import array
from dataclasses import replace
from functools import partial
from itertools import count

import pytest

import fakes
from engine.contract import SamplingParams
from engine.step_cost import LinearCost, StepCost
from fakes import Driver
from scheduler.config import PRESETS, SchedulerConfig
from scheduler.core import Scheduler
from scheduler.facts import PreemptionCause
from scheduler.learn.length_model import LengthModel
from scheduler.learn.step_model import StepModel
from scheduler.request import Band, FinishReason, Request, Slo
from scheduler.step.headroom import Headroom
from scheduler.step.preemption import Preemption

COST = StepCost("flat", *[LinearCost(intercept_s=0.001, per_token_s=0.0)] * 2)
_numbers = count(1)


class KnowsOneLength(LengthModel):
    """Expect the same of every output."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    def quantile(
        self, tenant_id: str, num_prompt_tokens: int, q: float, *, generated: int = 0,
        max_tokens: int,
    ) -> float:  # fmt: skip
        return float(min(max(self.length, generated + 1), max_tokens))


def make_driver(
    *, num_slots: int = 16, num_blocks: int = 2_000, expected: int = 8, policy: str = "vtc"
) -> Driver:
    engine = fakes.make_engine(
        cost=COST, block_size=8, max_num_batched_tokens=512, num_blocks=num_blocks,
        max_model_len=2_000, max_num_seqs=num_slots,
    )  # fmt: skip
    driver = Driver(engine)
    driver.scheduler = Scheduler(
        engine.info, config_of(policy), step_model=StepModel(COST, margin=1.0),
        lengths=KnowsOneLength(expected),
    )  # fmt: skip
    return driver


def config_of(policy: str) -> SchedulerConfig:
    mixed = PRESETS["mixed"]
    return replace(
        mixed,
        fairness=replace(mixed.fairness, policy=policy, unit="tokens"),
        preemption=replace(mixed.preemption, min_run_steps=1),
        prefix_caching=False,
    )


def offer(
    driver: Driver, tenant: str, num_requests: int = 1, *, prompt: int = 8, output: int = 200,
    band: Band = Band.DEFAULT, weight: float = 1.0, ttft_s: float | None = None,
) -> list[str]:  # fmt: skip
    names = [f"{tenant}-{next(_numbers)}" for _ in range(num_requests)]
    for name in names:
        driver.offer(
            Request(
                request_id=name,
                tenant_id=tenant,
                key_id=tenant,
                prompt_token_ids=array("i", [next(_numbers)] * prompt),
                params=SamplingParams(max_tokens=output, ignore_eos=True),
                cache_salt=tenant.encode(),
                arrival_s=driver.now,
                band=band,
                weight=weight,
                slo=Slo(ttft_s=ttft_s),
            )
        )
    return names


def full_of_answers() -> Driver:
    """Have a flood's long answers hold all blocks, beside one who asked for a little before."""
    driver = make_driver(num_slots=16, num_blocks=120, expected=1)
    offer(driver, "light", output=1)
    turns(driver, 2)
    offer(driver, "flood", 60, prompt=24, output=1_000)
    while num_free_blocks(driver) > 3:
        driver.turn()
    return driver


def turns(driver: Driver, num_turns: int) -> None:
    for _ in range(num_turns):
        driver.turn()


def num_rows(driver: Driver, tenant: str) -> int:
    bands = driver.scheduler.state(driver.now).bands
    return sum(t.running for band in bands for t in band.tenants if t.tenant_id == tenant)


def num_free_blocks(driver: Driver) -> int:
    return driver.scheduler.snapshot().free_blocks


def most_tokens(driver: Driver, tenant: str) -> float:
    """Say how much of the KV cache a tenant that has rows may hold in all."""
    running = driver.scheduler._running
    headroom = Headroom(driver.scheduler._pool, running)
    rows = [row for row in running if row.request.tenant_id == tenant]
    held = sum(row.num_tokens - 1 for row in rows)
    num_tokens = range(driver.scheduler.snapshot().total_blocks * 8)
    return held + max(n for n in num_tokens if headroom.is_within_share(rows[0], n))


def test_who_is_above_its_share_leaves_the_last_eighth_of_slots() -> None:
    """Beside a tenant that was live lately a flood takes fourteen of sixteen slots."""
    driver = make_driver()
    offer(driver, "light", output=1)
    turns(driver, 2)
    offer(driver, "flood", 40)
    turns(driver, 4)
    assert num_rows(driver, "flood") == 14
    [name] = offer(driver, "light")
    driver.turn()
    assert driver.tokens[name], "what was kept is for who comes"


def test_who_was_told_a_time_is_not_kept_waiting() -> None:
    """Promised requests, which admission lets in by the order alone, take what is free."""
    driver = make_driver()
    offer(driver, "light", output=1)
    turns(driver, 2)
    offer(driver, "flood", 16, ttft_s=60.0)
    turns(driver, 4)
    assert num_rows(driver, "flood") == 16
    offer(driver, "light", ttft_s=60.0)
    turns(driver, 4)
    assert num_rows(driver, "flood") == 16, "and send nobody back"


def test_who_is_alone_takes_all_slots() -> None:
    """Nothing is kept where nobody else was live, nor where tenants have no shares."""
    driver = make_driver()
    offer(driver, "flood", 40)
    turns(driver, 4)
    assert num_rows(driver, "flood") == 16
    driver = make_driver(policy="fcfs")
    offer(driver, "light", output=1)
    turns(driver, 2)
    offer(driver, "flood", 40)
    turns(driver, 4)
    assert num_rows(driver, "flood") == 16


def test_slots_that_batch_work_has_are_free_for_who_leaves_some() -> None:
    """Who is above its share leaves two slots to others, of which batch rows have any they like."""
    driver = make_driver()
    offer(driver, "light", output=1)
    turns(driver, 2)
    offer(driver, "flood", 12)
    turns(driver, 4)
    offer(driver, "batch", 4, band=Band.BATCH)
    turns(driver, 4)
    assert (num_rows(driver, "flood"), num_rows(driver, "batch")) == (12, 3)
    offer(driver, "flood")
    turns(driver, 2)
    assert num_rows(driver, "flood") == 13


def test_batch_work_leaves_the_last_eighth_of_slots_to_its_own_band() -> None:
    """Rows of a tenant's batches are no free slots for more of them."""
    driver = make_driver()
    mixed = config_of("vtc")
    config = replace(mixed, composer=replace(mixed.composer, batch_kv_headroom=0.0))
    driver.scheduler.configure(config, driver.now)
    offer(driver, "light", output=1, band=Band.BATCH)
    turns(driver, 2)
    offer(driver, "flood", 40, band=Band.BATCH)
    turns(driver, 8)
    assert num_rows(driver, "flood") == 14


def test_two_floods_have_all_slots_between_them() -> None:
    """Who holds less than its share takes the last eighth: nothing stays idle for equals."""
    driver = make_driver()
    offer(driver, "a", 40)
    offer(driver, "b", 40)
    turns(driver, 4)
    assert (num_rows(driver, "a"), num_rows(driver, "b")) == (8, 8)


def test_who_is_above_its_share_leaves_the_last_eighth_of_blocks() -> None:
    """A flood of prompts leaves an eighth of the blocks, and the light tenant has them at once."""
    driver = make_driver(num_slots=64, num_blocks=160)
    offer(driver, "light", output=1)
    turns(driver, 2)
    # Of five blocks each, with what they are to draw.
    offer(driver, "flood", 60, prompt=32, output=8)
    turns(driver, 4)
    assert 20 <= num_free_blocks(driver) < 50
    least = min(num_free_blocks(driver) for _ in range(20) if driver.turn())
    assert least >= 20
    [name] = offer(driver, "light", prompt=80, output=8)
    driver.turn()
    assert driver.tokens[name]


def test_who_has_no_row_is_let_in_with_more_than_its_share() -> None:
    """What is free is enough: nothing else would ever let it in, as long as others run."""
    driver = make_driver(num_slots=64, num_blocks=160)
    offer(driver, "light", output=1)
    turns(driver, 2)
    offer(driver, "flood", 4, prompt=64)
    turns(driver, 2)
    assert num_free_blocks(driver) >= 111 + 8
    offer(driver, "large", prompt=880, output=8)
    turns(driver, 2)
    assert (num_rows(driver, "large"), num_rows(driver, "flood")) == (1, 4)


@pytest.mark.parametrize("band", [Band.DEFAULT, Band.BATCH])
def test_a_turn_that_cannot_be_taken_passes_to_who_may_take_it(band: Band) -> None:
    """The flood is next, does not fit beside the headroom, and does not keep it from the other.

    Of the batch band as well.
    """
    driver = make_driver()
    mixed = config_of("vtc")
    composer = replace(mixed.composer, batch_kv_headroom=0.0)
    driver.scheduler.configure(replace(mixed, composer=composer), driver.now)
    offer(driver, "light", output=1, band=band)
    turns(driver, 2)
    offer(driver, "flood", 40, band=band)
    turns(driver, 4)
    assert num_rows(driver, "flood") == 14
    tree = driver.scheduler._lifecycle.waiting
    [name] = offer(driver, "light", band=band)
    tree.bands[band.name].children["light"].counter += 1_500.0
    head = tree.peek(driver.now + 1e-9)
    assert head is not None
    assert head.request.tenant_id == "flood"
    before = tree.bands[band.name].children["flood"].served
    driver.turn()
    assert driver.tokens[name]
    drawn = 2.0 * num_rows(driver, "flood")
    after = tree.bands[band.name].children["flood"].served
    assert after == before + drawn, "who is passed is charged nothing"
    assert head.num_bypassed == 0


def test_who_is_far_ahead_has_no_claim_to_the_headroom() -> None:
    """Where the only one it could be for has been served far more, the next request takes it."""
    driver = make_driver()
    offer(driver, "light", output=1)
    turns(driver, 2)
    offer(driver, "flood", 40)
    turns(driver, 4)
    [name] = offer(driver, "light")
    driver.scheduler._lifecycle.waiting.bands["DEFAULT"].children["light"].counter += 1e6
    driver.turn()
    assert num_rows(driver, "flood") == 16
    assert not driver.tokens[name]


def test_a_request_larger_than_its_tenants_share_is_not_passed_for_ever() -> None:
    """A tenant that has no row is below its share, whatever it asks for: others wait with it."""
    driver = make_driver(num_slots=16, num_blocks=40)
    offer(driver, "small", 1, prompt=100, output=20)
    driver.turn()
    [large] = offer(driver, "large", prompt=240, output=2)
    for _ in range(40):
        offer(driver, "small", prompt=16, output=8)
        driver.turn()
        if driver.tokens[large]:
            break
    assert driver.tokens[large]


def test_a_lower_band_that_is_owed_and_has_its_share_hides_no_higher_one() -> None:
    """Where flex is next for its minimum, and above its share, a default request starts."""
    driver = make_driver()
    offer(driver, "flood", 14, band=Band.FLEX)
    offer(driver, "light", output=1)
    turns(driver, 2)
    tree = driver.scheduler._lifecycle.waiting
    offer(driver, "flood", 5, band=Band.FLEX)
    [name] = offer(driver, "light", output=5)
    tree.bands["FLEX"].counter = 1e6
    tree.bands["FLEX"].above.order.update(tree.bands["FLEX"], driver.now)
    head = tree.peek(driver.now + 1e-9)
    assert head is not None
    assert head.request.band is Band.FLEX
    driver.turn()
    assert driver.tokens[name]


def test_answers_that_outgrow_what_was_expected_give_the_headroom_back() -> None:
    """Rows that have grown over it go back to the queue for a tenant below its share."""
    driver = make_driver(num_slots=16, num_blocks=64, expected=1)
    offer(driver, "light", output=1)
    turns(driver, 2)
    offer(driver, "flood", 14, prompt=8, output=60)
    while num_free_blocks(driver) > 3:
        driver.turn()
    [name] = offer(driver, "light", prompt=40, output=4)
    turns(driver, 2)
    assert driver.tokens[name]
    assert driver.scheduler.snapshot().num_preemptions > 0
    assert num_rows(driver, "flood") >= 6, "no more of them go than must"
    driver.run()
    assert {output.finish_reason for output in driver.last.values()} == {FinishReason.LENGTH}


def test_a_request_larger_than_the_headroom_waits_for_no_answers_of_a_flood() -> None:
    """Within its tenant's share it is given back what it needs, and that is kept for a while."""
    driver = full_of_answers()
    [name] = offer(driver, "light", prompt=320, output=1)
    turns(driver, 2)
    assert driver.last[name].finish_reason is FinishReason.LENGTH
    num_preempted = driver.scheduler.snapshot().num_preemptions
    for _ in range(5):
        # Rows would come back into what it left, and go for the next one.
        turns(driver, 5)
        assert num_free_blocks(driver) > 34
        [name] = offer(driver, "light", prompt=320, output=1)
        turns(driver, 2)
        assert driver.last[name].finish_reason is FinishReason.LENGTH
    assert driver.scheduler.snapshot().num_preemptions < num_preempted + 5
    driver.now += 11.0
    turns(driver, 10)
    assert num_free_blocks(driver) < 34


def test_blocks_that_are_found_count_for_who_is_given_back_its_share() -> None:
    """What a prompt has in the cache is free until it is taken: rows go for all that it needs."""
    driver = make_driver(num_slots=16, num_blocks=120, expected=1)
    driver.scheduler.configure(replace(config_of("vtc"), prefix_caching=True), driver.now)
    ask = partial(fakes.make_request, max_tokens=1, tenant_id="light", salt=b"l")
    prompt = [number % 50 for number in range(401)]
    driver.offer(ask("before", prompt=prompt[:301]))
    turns(driver, 2)
    offer(driver, "flood", 60, prompt=24, output=1_000)
    while num_free_blocks(driver) > 45:
        driver.turn()
    driver.offer(ask("after", prompt=prompt, arrival_s=driver.now))
    turns(driver, 5)
    assert driver.last["after"].finish_reason is FinishReason.LENGTH
    assert driver.last["after"].num_cached_tokens > 280


def test_nothing_is_kept_for_a_large_request_that_left_before_its_first_token() -> None:
    """Who sends large prompts and cancels them does not keep blocks from others in between."""
    driver = full_of_answers()
    num_preempted = driver.scheduler.snapshot().num_preemptions
    [name] = offer(driver, "light", prompt=320, output=1)
    while True:
        plan = driver.scheduler.plan(driver.now)
        assert plan is not None
        driver.handles.append(driver.engine.launch(plan))
        # It leaves while its prompt is computed.
        if driver.scheduler.snapshot().num_preemptions > num_preempted:
            break
        driver.collect()
    assert driver.scheduler.cancel(name, driver.now) is not None
    driver.collect()
    assert driver.now < 10.0
    turns(driver, 6)
    assert num_free_blocks(driver) < 34


@pytest.mark.parametrize("band", [Band.DEFAULT, Band.PRIORITY])
def test_what_a_third_tenant_leaves_is_for_those_that_ask(band: Band) -> None:
    """One that holds nothing takes no third of the blocks from two that want more than a half."""
    driver = make_driver(num_slots=16, num_blocks=120, expected=1)
    offer(driver, "light", output=1, band=band)
    turns(driver, 2)
    offer(driver, "mine", 2, prompt=120, output=200)
    offer(driver, "flood", 12, output=90)
    while num_free_blocks(driver) > 3:
        driver.turn()
    held = driver.scheduler.snapshot().total_blocks / 3
    [name] = offer(driver, "mine", prompt=56, output=2)
    rows = [row for row in driver.scheduler._running if row.request.tenant_id == "mine"]
    assert sum(row.num_tokens for row in rows) + 57 > 8 * held, "it is beyond a third with that"
    turns(driver, 2)
    assert driver.tokens[name]
    # Of what is left when the headroom is, no more than a half.
    [name] = offer(driver, "mine", prompt=112, output=2)
    turns(driver, 2)
    assert not driver.tokens[name]


def test_what_lower_bands_hold_is_not_taken_from_a_share() -> None:
    """A tenant may hold as much of the blocks beside rows that would go for it as without them."""
    driver = make_driver(num_blocks=120, expected=1)
    offer(driver, "light", output=1)
    turns(driver, 2)
    offer(driver, "mine", 2, prompt=120)
    turns(driver, 2)
    before = most_tokens(driver, "mine")
    offer(driver, "lower", prompt=200, band=Band.FLEX)
    turns(driver, 2)
    assert most_tokens(driver, "mine") == before == pytest.approx(0.875 * 8 * 120)


def test_a_newcomer_has_its_share_of_what_runs_and_no_more() -> None:
    """One that nobody knew of displaces rows of who has more than its share, up to its own."""
    driver = make_driver()
    offer(driver, "flood", 40)
    turns(driver, 4)
    assert num_rows(driver, "flood") == 16
    [first] = offer(driver, "newcomer")
    driver.turn()
    assert driver.tokens[first]
    assert num_rows(driver, "flood") == 15, "one goes for one"
    offer(driver, "newcomer", 20)
    turns(driver, 20)
    assert (num_rows(driver, "newcomer"), num_rows(driver, "flood")) == (8, 8)


def test_nobody_goes_for_one_whom_that_does_not_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the rows that may go have fewer blocks than the request needs, all of them stay."""
    driver = make_driver(num_blocks=128)
    offer(driver, "flood", 40, prompt=60)
    turns(driver, 10)
    allowed: list[int] = []
    monkeypatch.setattr(Preemption, "may_go", lambda self, row: row.slot in allowed)
    allowed.append(min(row.slot for row in driver.scheduler._running))
    offer(driver, "newcomer", prompt=100)
    turns(driver, 3)
    preempted = driver.scheduler._lifecycle.preempted
    assert not preempted[PreemptionCause.SHARE]
    allowed.extend(range(16))
    offer(driver, "newcomer", prompt=100)
    turns(driver, 4)
    assert preempted[PreemptionCause.SHARE]


def test_within_shares_nobody_is_displaced() -> None:
    """A tenant at its share keeps its rows, whoever waits in its band."""
    driver = make_driver()
    offer(driver, "a", 20)
    offer(driver, "b", 20)
    turns(driver, 20)
    assert driver.scheduler.snapshot().num_preemptions == 0


def test_a_lone_row_that_is_larger_than_a_share_goes_on() -> None:
    """Only who has its share of the blocks even without a row gives that row up for another."""
    driver = make_driver(num_blocks=64, expected=1)
    offer(driver, "large", prompt=400, output=60)
    offer(driver, "small", prompt=48, output=60)
    while num_free_blocks(driver) > 4:
        driver.turn()
    offer(driver, "small", prompt=40, output=4)
    turns(driver, 2)
    assert (num_rows(driver, "large"), num_rows(driver, "small")) == (1, 1)
    assert driver.scheduler.snapshot().num_preemptions == 0


def test_nobody_is_brought_below_its_share_for_who_asks_for_more() -> None:
    """Of rows of 36 tokens, six are above a third of 512 and five are not: only one goes."""
    driver = make_driver(num_blocks=64, expected=1)
    offer(driver, "large", prompt=256, output=100)
    offer(driver, "flood", 6, prompt=34, output=100)
    turns(driver, 2)
    assert (num_rows(driver, "flood"), num_free_blocks(driver)) == (6, 1)
    [name] = offer(driver, "newcomer", prompt=48)
    turns(driver, 2)
    assert not driver.tokens[name], "two rows would have had to go for it"
    assert (num_rows(driver, "flood"), num_rows(driver, "large")) == (5, 1)


def test_nobody_takes_turns_where_shares_are_no_whole_slots() -> None:
    """Of fifteen slots one tenant has eight and the other seven, and none goes back and forth."""
    driver = make_driver(num_slots=15)
    offer(driver, "flood", 40)
    turns(driver, 4)
    offer(driver, "newcomer", 20)
    turns(driver, 10)
    before = driver.scheduler.snapshot().num_preemptions
    turns(driver, 20)
    assert driver.scheduler.snapshot().num_preemptions == before == 7
    assert (num_rows(driver, "newcomer"), num_rows(driver, "flood")) == (7, 8)


def test_pins_do_not_protect_who_is_above_its_share() -> None:
    """Where blocks run out, a row sent back twice goes again if its tenant is above its share."""
    driver = make_driver(num_slots=16, num_blocks=64)
    [mine] = offer(driver, "light", prompt=8, output=150)
    offer(driver, "flood", 8, prompt=8, output=60)
    turns(driver, 2)
    scheduler = driver.scheduler
    for sequence in scheduler._running:
        if sequence.request.tenant_id == "flood":
            sequence.num_preemptions = 2
    driver.run()
    preempted = {name for plan in driver.plans for name in plan.preempted}
    assert preempted, "blocks run out"
    assert mine not in preempted
    assert driver.last[mine].finish_reason is FinishReason.LENGTH
    assert scheduler._lifecycle.find(mine) is None
