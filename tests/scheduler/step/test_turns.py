"""Whose prompt gets the tokens of a step: tenants behind their shares, and nobody never."""

from __future__ import annotations

from array import array
from dataclasses import replace
from itertools import count, pairwise

import pytest

import fakes
from engine.contract import SamplingParams, StepPlan
from engine.kv.block_pool import BlockPool
from engine.kv.table import BlockTable
from engine.step_cost import LinearCost, StepCost
from fakes import Driver
from scheduler.config import PRESETS, FairnessConfig
from scheduler.core import Scheduler
from scheduler.learn.step_model import StepModel
from scheduler.order import standings
from scheduler.order.fair_tree import FairTree
from scheduler.request import Band, Request, Slo
from scheduler.running import RunningSet
from scheduler.sequence import Sequence
from scheduler.step.turns import Turns

COST = StepCost("flat", *[LinearCost(intercept_s=0.001, per_token_s=0.0)] * 2)
BUDGET = 50
_numbers = count(1)


def make_driver(policy: str = "vtc", *, loan: float = 16_384.0) -> Driver:
    """Drive the default preset with steps of fifty tokens."""
    engine = fakes.make_engine(
        cost=COST, block_size=8, max_num_batched_tokens=BUDGET, num_blocks=2_000,
        max_model_len=2_000, max_num_seqs=64,
    )  # fmt: skip
    driver = Driver(engine)
    mixed = PRESETS["mixed"]
    fairness = replace(mixed.fairness, policy=policy, borrow_tokens=loan)
    admission = replace(mixed.admission, predict_ttft=False)
    config = replace(mixed, fairness=fairness, admission=admission, prefix_caching=False)
    driver.scheduler = Scheduler(engine.info, config, step_model=StepModel(COST, margin=1.0))
    return driver


def offer(
    driver: Driver,
    name: str,
    tenant: str,
    num_tokens: int,
    band: Band = Band.DEFAULT,
    organisation: str = "",
    ttft_s: float | None = None,
) -> None:
    driver.offer(
        Request(
            request_id=name,
            tenant_id=tenant,
            key_id=tenant,
            prompt_token_ids=array("i", [next(_numbers)] * num_tokens),
            params=SamplingParams(max_tokens=2, ignore_eos=True),
            cache_salt=tenant.encode(),
            arrival_s=driver.now,
            band=band,
            organisation_id=organisation,
            slo=Slo(ttft_s=ttft_s),
        )
    )


def steps_until_begun(driver: Driver, name: str, *, at_most: int) -> int:
    for number in range(at_most):
        driver.turn()
        if driver.tokens[name]:
            return number + 1
    raise AssertionError(f"{name} did not begin")


def chunks(plan: StepPlan) -> list[int]:
    return [chunk.n_tokens for chunk in plan.slices]


def test_long_prompt_lets_those_pass_that_have_had_less() -> None:
    """A newcomer's prompt is computed at once, though the one under way is due before it."""
    driver = make_driver()
    offer(driver, "long", "heavy", 1_000)
    for _ in range(4):
        driver.turn()
    offer(driver, "short", "light", 120)
    assert steps_until_begun(driver, "short", at_most=9) == 3
    assert chunks(driver.plans[-1]) == [20, BUDGET - 20], "what is left of a step is the long one's"
    assert not driver.tokens["long"]


def test_a_new_tenant_of_an_organisation_passes_within_it_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It goes before a long prompt of its own organisation, and after whoever had less."""
    monkeypatch.setattr(standings, "_TURN_TOKENS", 100.0)
    driver = make_driver()
    offer(driver, "long", "heavy", 1_000, organisation="crowd")
    for _ in range(4):
        driver.turn()
    offer(driver, "sybil", "fresh", 120, organisation="crowd")
    offer(driver, "short", "light", 120)
    assert steps_until_begun(driver, "short", at_most=9) == 3
    assert not driver.tokens["sybil"]
    assert steps_until_begun(driver, "sybil", at_most=9) <= 5
    assert not driver.tokens["long"]


def test_short_prompts_of_an_organisation_are_finished_before_others_begin() -> None:
    """Tenants of one owner that come one after the other do not all have a prompt under way."""
    driver = make_driver()
    offer(driver, "other", "light", 1_000)
    for number in range(20):
        offer(driver, f"s{number}", f"sybil{number}", 70, organisation="crowd")
        driver.turn()
        assert len(driver.scheduler._running.prefilling) <= 3
    assert all(driver.tokens[f"s{number}"] for number in range(10))


def test_who_has_had_as_much_waits_for_the_long_prompt() -> None:
    """A tenant passes until it is as far ahead, and the prompt under way goes on then."""
    driver = make_driver()
    offer(driver, "long", "heavy", 1_000)
    driver.turn()
    for number in range(30):
        offer(driver, f"s{number}", "light", 100)
    steps_until_begun(driver, "long", at_most=60)
    had = sum(bool(driver.tokens[f"s{number}"]) for number in range(30))
    # Of the thousand that the other one was charged, and some of it was computed meanwhile.
    assert 8 <= had <= 11


def test_newcomers_without_end_do_not_keep_a_prompt_from_ending() -> None:
    """One step in ten goes on with what was passed in the others."""
    driver = make_driver()
    offer(driver, "long", "heavy", 500)
    driver.turn()
    for number in range(200):
        offer(driver, f"n{number}", f"tenant-{number}", BUDGET)
        driver.turn()
        if driver.tokens["long"]:
            break
    assert driver.tokens["long"]
    # Nine chunks were left, of which none had a step of its own but one in ten.
    assert 60 <= number <= 100


def test_a_promised_prompt_goes_on_within_the_loan() -> None:
    """One that is due first is not passed by who had less, as far as its tenant may be ahead."""
    for loan, begins_first in ((0.0, "short"), (200.0, "short"), (500.0, "long")):
        driver = make_driver(loan=loan)
        offer(driver, "long", "heavy", 400, ttft_s=1.0)
        driver.turn()
        offer(driver, "short", "light", 120, ttft_s=1.0)
        while not (driver.tokens["long"] or driver.tokens["short"]):
            driver.turn()
        begun = {name for name in ("long", "short") if driver.tokens[name]}
        assert begun == {begins_first}, loan


def test_only_who_is_promised_and_in_time_is_not_passed() -> None:
    """Without a promise, or once it is late, a prompt waits for tenants that had less."""
    driver = make_driver(loan=1_000.0)
    offer(driver, "long", "heavy", 400)
    driver.turn()
    offer(driver, "short", "light", 120, ttft_s=1.0)
    steps_until_begun(driver, "short", at_most=3)
    driver = make_driver(loan=1_000.0)
    offer(driver, "long", "heavy", 400, ttft_s=0.0015)
    driver.turn()
    driver.turn()
    offer(driver, "short", "light", 120, ttft_s=1.0)
    steps_until_begun(driver, "short", at_most=3)


def test_deadlines_decide_within_a_tenant() -> None:
    """A tenant's own prompt under way goes on before its next one, which is due later."""
    driver = make_driver()
    offer(driver, "first", "one", 200)
    driver.turn()
    offer(driver, "second", "one", 50)
    steps_until_begun(driver, "first", at_most=9)
    assert not driver.tokens["second"]


def test_policies_without_accounts_go_by_deadlines_alone() -> None:
    """First come, first served knows no shares: nobody passes."""
    driver = make_driver("fcfs")
    offer(driver, "long", "heavy", 300)
    driver.turn()
    offer(driver, "short", "light", 50)
    steps_until_begun(driver, "long", at_most=9)
    assert not driver.tokens["short"]


def test_columns_order_prompts_as_their_turns_do() -> None:
    """All prompts under way, by columns, stand as one by one; the batch band is not among them."""
    driver = make_driver()
    for number in range(12):
        band = (Band.DEFAULT, Band.PRIORITY, Band.FLEX, Band.BATCH)[number % 4]
        organisation = ("", "acme")[number % 2]
        ttft_s = (None, 1.0, 0.5)[number % 3]
        offer(driver, f"r{number}", f"t{number % 5}", 60 + number, band, organisation, ttft_s)
    scheduler = driver.scheduler
    for sequence in sorted(scheduler._lifecycle.waiting, key=lambda s: -s.ordinal):
        scheduler._lifecycle.admit(sequence, [], 100.0, driver.now)
    turns, running = scheduler._composer._turns, scheduler._running
    online = [s for s in running.prefilling if s.request.band is not Band.BATCH]
    assert len(online) == 9
    in_turn = [running.find(slot) for slot in turns.in_turn(driver.now).tolist()]
    assert all(turns.goes_before(b, a, driver.now) for a, b in pairwise(in_turn))


@pytest.mark.parametrize(("served", "is_first"), [(48.0, True), (56.0, False)])
def test_a_loan_is_counted_in_what_a_weight_buys(served: float, is_first: bool) -> None:
    """Prompts of a tenant of weight four are ahead by four times what its counter says."""
    tree, running = FairTree(FairnessConfig(borrow_tokens=50.0)), RunningSet(4)
    rows = [_under_way(tree, running, name, weight) for name, weight in (("a", 1.0), ("b", 4.0))]
    patient, hurried = rows
    tree.charge(hurried, served, 0.0)
    turns = Turns(tree, running)
    assert turns.goes_before(hurried, patient, 4.0) is is_first
    assert turns.goes_before(patient, hurried, 4.0) is not is_first
    first = hurried if is_first else patient
    assert turns.in_turn(4.0).tolist()[-1] == first.slot


def _under_way(tree: FairTree, running: RunningSet, tenant: str, weight: float) -> Sequence:
    """Let a tenant's prompt begin; the later it came, the sooner it is due."""
    number = next(_numbers)
    request = replace(fakes.make_request(f"r{number}", tenant_id=tenant), weight=weight)
    table = BlockTable(BlockPool(4, 4), b"")
    info = fakes.make_engine().info
    sequence = Sequence(request, table, ordinal=number, max_len=64, info=info)
    sequence.start_by_s, sequence.deadline_s = 1_000.0 - number, 1_000.0 - number
    tree.enrol(sequence, 0.0)
    tree.push(sequence, 0.0)
    tree.remove(sequence, 0.0)
    running.admit(sequence)
    running.prefilling_rows.join(sequence)
    return sequence
