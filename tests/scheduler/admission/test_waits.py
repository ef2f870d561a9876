"""How long a request waits for prompts under way: those that go before it, and no others."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

import fakes
from engine.step_cost import LinearCost, StepCost, StepFeatures
from fakes import Driver
from scheduler.admission.drain_rate import DrainRate
from scheduler.admission.queue_ahead import QueueAhead
from scheduler.admission.waits import Waits
from scheduler.config import PRESETS, FairnessConfig
from scheduler.core import Scheduler
from scheduler.learn.step_model import StepModel
from scheduler.order import FairTree
from scheduler.request import Admit, Band, Reject, Slo
from scheduler.running import RunningSet
from scheduler.sequence import Sequence
from waiting import make_sequence

# A millisecond a token and nothing for the step: a thousand tokens a second.
_LINE = LinearCost(0.0, 1e-3)
_COST = StepCost("linear", _LINE, _LINE)


def driver_of(policy: str = "vtc", *, num_slots: int = 64) -> Driver:
    engine = fakes.make_engine(
        cost=_COST,
        max_model_len=40_000,
        num_blocks=20_000,
        max_num_batched_tokens=100,
        max_num_seqs=num_slots,
    )
    driver = Driver(engine)
    mixed = PRESETS["mixed"]
    config = replace(mixed, fairness=replace(mixed.fairness, policy=policy), prefix_caching=False)
    driver.scheduler = Scheduler(engine.info, config, step_model=StepModel(_COST, margin=1.0))
    return driver


def offer(
    driver: Driver, name: str, tenant: str, prompt: int, *, ttft_s: float | None = None,
    band: Band = Band.DEFAULT,
) -> Admit | Reject:  # fmt: skip
    return driver.offer(
        fakes.make_request(
            name, tenant_id=tenant, prompt=[len(name)] * prompt, max_tokens=2, ignore_eos=True,
            arrival_s=driver.now, slo=Slo(ttft_s=ttft_s), band=band,
        )
    )  # fmt: skip


def test_a_prompt_of_a_tenant_ahead_does_not_count() -> None:
    """Beside ten thousand tokens of one ahead of its share, a promise of a second is taken."""
    driver = driver_of()
    offer(driver, "long", "heavy", 10_000)
    driver.turn()
    answer = offer(driver, "short", "light", 100, ttft_s=1.0)
    assert isinstance(answer, Admit)
    while not driver.tokens["short"]:
        driver.turn()
    assert driver.last["short"].finish_reason is None or driver.tokens["short"]
    assert driver.now < 1.2


@pytest.mark.parametrize(("policy", "band"), [("vtc", Band.PRIORITY), ("fcfs", Band.DEFAULT)])
def test_a_prompt_that_goes_before_counts(policy: str, band: Band) -> None:
    """One of a higher band counts whole, and without shares the one that is due before."""
    driver = driver_of(policy)
    offer(driver, "long", "heavy", 10_000, band=band, ttft_s=None if band is Band.PRIORITY else 0.5)
    driver.turn()
    answer = offer(driver, "short", "light", 100, ttft_s=1.0)
    assert isinstance(answer, Reject)


def test_a_prompt_of_a_lower_band_does_not_count() -> None:
    """Whoever sent it, its own tenant too."""
    for tenant in ("heavy", "light"):
        driver = driver_of()
        offer(driver, "long", tenant, 10_000, band=Band.FLEX)
        driver.turn()
        assert isinstance(offer(driver, "short", "light", 100, ttft_s=1.0), Admit)


def test_a_prompt_of_the_tenants_own_counts() -> None:
    """What its own tenant has under way, due before it, comes before a request."""
    driver = driver_of()
    offer(driver, "long", "light", 10_000)
    driver.turn()
    driver.scheduler.configure(replace(driver.scheduler.config), driver.now)
    short = offer(driver, "short", "light", 100, ttft_s=1.0)
    late = offer(driver, "later", "light", 100, ttft_s=70.0)
    assert isinstance(short, Admit), "it is due before the long one"
    assert isinstance(late, Admit), "ten seconds are no matter to it"


def test_a_request_waits_for_a_slot_of_its_own() -> None:
    """With nobody ahead it still waits until a row ends, which takes two seconds, if all run."""
    info, model = fakes.make_engine(cost=_COST).info, StepModel(_COST, margin=1.0)
    rate, running = DrainRate(info, model), RunningSet(2)
    rate.note_ends(1, 2.0)
    waits = Waits(QueueAhead(FairTree(FairnessConfig())), rate, running)
    for expected_s in (0.0, 0.0, 2.0):
        assert waits.predict(make_sequence(10), 0.0).queue_s == pytest.approx(expected_s)
        if not running.is_full:
            row = make_sequence(10)
            running.admit(row)
            row.num_computed = row.num_tokens


class _Rounds(Waits):
    """Say what others' queues, which run empty after two seconds, make a request wait."""

    def _round_s(
        self, sequence: Sequence, now: float, horizon_s: float, sure_s: float, **more: bool
    ) -> float:
        return 1.0 + min(horizon_s, 1.2)


@pytest.mark.parametrize(("at_most_s", "end_s"), [(math.inf, 2.2), (1.5, 20.0)])
def test_a_wait_that_grows_fast_is_looked_at_where_it_ends(at_most_s: float, end_s: float) -> None:
    """Two rounds show nothing of queues that run empty later; one that is too long anyway is not
    looked at."""
    info, model = fakes.make_engine(cost=_COST).info, StepModel(_COST, margin=1.0)
    tree = FairTree(FairnessConfig())
    waits = _Rounds(QueueAhead(tree), DrainRate(info, model), RunningSet(2))
    found = waits.predict(make_sequence(1), 0.0, at_most_s=at_most_s)
    assert found.sure_s + found.queue_s == pytest.approx(end_s)


def test_steps_that_lack_no_room_say_nothing_of_how_fast_a_queue_drains() -> None:
    """Requests that wait for memory, while small steps run, do not make predictions longer."""
    driver = driver_of()
    offer(driver, "long", "heavy", 10_000)
    driver.turn()
    admission = driver.scheduler._admission
    before = admission._rate.tokens_per_s()
    features = StepFeatures(num_prefill_tokens=10)
    offer(driver, "waits", "other", 30_000)
    for n in range(100):
        admission.note_step(features, 0.1, driver.now + 0.1 * n, is_full=False)
    assert admission._rate.tokens_per_s() == pytest.approx(before, rel=0.01)
    for n in range(100):
        admission.note_step(features, 0.1, driver.now + 10 + 0.1 * n, is_full=True)
    assert admission._rate.tokens_per_s() < 0.2 * before


def test_steps_that_lack_slots_say_nothing_of_how_fast_a_queue_drains() -> None:
    """Who waits for a slot waits for a row to end, however small the steps are meanwhile."""
    driver = driver_of(num_slots=1)
    offer(driver, "long", "heavy", 10_000)
    driver.turn()
    admission = driver.scheduler._admission
    before = admission._rate.tokens_per_s()
    offer(driver, "waits", "other", 30_000)
    for n in range(100):
        admission.note_step(StepFeatures(num_prefill_tokens=10), 0.1, driver.now + 10 + 0.1 * n)
    assert admission._rate.tokens_per_s() == pytest.approx(before, rel=0.01)
