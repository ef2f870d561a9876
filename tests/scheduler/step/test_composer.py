"""How a step is filled: chunks by deadline, admission, displacement, and the batch band's place."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import replace

import pytest

import fakes
from engine.contract import StepPlan, StepResult, TokenLogprobs
from engine.step_cost import LinearCost, StepCost
from fakes import Driver
from scheduler.config import (
    PRESETS,
    AdmissionConfig,
    ComposerConfig,
    FairnessConfig,
    SchedulerConfig,
    first_come,
)
from scheduler.core import Scheduler
from scheduler.learn.step_model import StepModel
from scheduler.lifecycle import MAX_DROPPED
from scheduler.request import Band, FinishReason, Request, Slo

# A step of n tokens takes 10 ms and n ms more.
_LINE = LinearCost(0.010, 0.001)
COST = StepCost("line", _LINE, _LINE)
_DEAR = replace(_LINE, per_prefill_context_token_s=4e-4)
# To read five hundred tokens takes as long as to compute two hundred.
DEAR = StepCost("dear", _DEAR, _DEAR)


def driver_of(config: SchedulerConfig, cost: StepCost = COST, **engine: int) -> Driver:
    """Drive a scheduler that knows what steps cost, without any margin."""
    sizes = {"max_num_batched_tokens": 512, "num_blocks": 200, "max_model_len": 600, **engine}
    driver = Driver(fakes.make_engine(cost=cost, block_size=8, **sizes))
    driver.scheduler = Scheduler(driver.engine.info, config, step_model=StepModel(cost, margin=1.0))
    return driver


def config_of(base: SchedulerConfig | None = None, **composer: object) -> SchedulerConfig:
    base = base or first_come(prefix_caching=False)
    return replace(base, composer=replace(base.composer, **composer))  # type: ignore[arg-type]


def request(name: str, num_prompt_tokens: int, **changes: object) -> Request:
    changes = {"max_tokens": 30, "ignore_eos": True, **changes}
    return fakes.make_request(name, prompt=[1] * num_prompt_tokens, **changes)  # type: ignore[arg-type]


def prefilled(plan: StepPlan) -> int:
    return sum(chunk.n_tokens for chunk in plan.slices)


def started(driver: Driver) -> list[str]:
    return [new.request_id for plan in driver.plans for new in plan.admitted]


def test_chunks_end_before_the_next_token_is_due() -> None:
    """Beside a row that must draw every 60 ms, a step of 10 ms takes 37 prompt tokens: it is over
    after four fifths of that.
    """
    driver = driver_of(config_of(dynamic_chunk=True, min_chunk_tokens=1))
    driver.offer(request("paced", 8, slo=Slo(tpot_s=0.060)))
    driver.turn()
    driver.offer(request("long", 400))
    driver.turn()
    assert prefilled(driver.plans[-1]) == 37


def test_late_rows_do_not_stop_prefills() -> None:
    """A pace that cannot be kept leaves prefills their smallest chunk."""
    driver = driver_of(config_of(dynamic_chunk=True, min_chunk_tokens=32))
    driver.offer(request("hasty", 8, slo=Slo(tpot_s=0.001)))
    driver.turn()
    driver.offer(request("long", 400))
    driver.turn()
    assert prefilled(driver.plans[-1]) == 32


def test_banked_time_is_not_spent_at_once_where_a_gap_is_promised() -> None:
    """Tokens that came early do not stretch a step beyond the promised gap."""
    driver = driver_of(config_of(dynamic_chunk=True, min_chunk_tokens=128))
    driver.offer(request("paced", 8, slo=Slo(ttft_s=60.0, tpot_s=1.0, max_gap_s=0.1)))
    driver.turn()
    driver.offer(request("long", 400))
    driver.turn()
    assert prefilled(driver.plans[-1]) == 89


def test_prefills_go_by_deadline() -> None:
    """A prompt under way yields to a newcomer that is due before it."""
    driver = driver_of(config_of(dynamic_chunk=False, max_num_batched_tokens=64))
    driver.offer(request("patient", 300, slo=Slo(ttft_s=50.0)))
    driver.turn()
    driver.offer(request("urgent", 40, slo=Slo(ttft_s=0.5)))
    driver.turn()
    assert [chunk.n_tokens for chunk in driver.plans[-1].slices] == [40, 24]


def test_the_first_that_does_not_fit_ends_admission() -> None:
    """A small request behind a large one waits with it, though there is room for the small one."""
    driver = driver_of(config_of(), num_blocks=30)
    for name, size in (("a", 100), ("large", 200), ("small", 8)):
        driver.offer(request(name, size, tenant_id=name, max_tokens=2))
    driver.turn()
    assert started(driver) == ["a"]


def test_a_large_request_is_passed_a_few_times_only() -> None:
    """With bypasses, small ones of other tenants go ahead, at most as often as is allowed."""
    driver = driver_of(config_of(max_bypasses=2), num_blocks=30, max_num_seqs=8)
    driver.offer(request("a", 100, tenant_id="a", max_tokens=20))
    driver.offer(request("large", 200, tenant_id="large", max_tokens=2))
    for n in range(4):
        driver.offer(request(f"s{n}", 8, tenant_id=f"s{n}", max_tokens=2))
    driver.turn()
    driver.turn()
    assert started(driver) == ["a", "s0", "s1"]
    driver.run()
    assert len(driver.last) == 6


def test_prefill_first_gives_prefills_steps_of_their_own() -> None:
    """No step has both, and the queue is looked at every so many steps."""
    driver = driver_of(config_of(prefill_first=True, admission_interval_steps=5))
    driver.offer(request("a", 20))
    driver.turn()
    driver.offer(request("b", 20))
    for _ in range(8):
        driver.turn()
    kinds = ["prefill" if plan.slices else "decode" for plan in driver.plans[:8]]
    assert all(not (plan.slices and len(plan.decodes)) for plan in driver.plans)
    assert kinds == ["prefill", *["decode"] * 5, "prefill", "decode"]


def test_a_queue_that_nobody_can_leave_is_looked_at_once_a_step() -> None:
    """Where all rows pause and no slot is free, a step computes nothing and the next one looks."""
    driver = driver_of(config_of(admission_interval_steps=3), max_num_seqs=1)
    driver.offer(request("paused", 8, granted_tokens=1))
    driver.turn()
    driver.offer(request("next", 8, max_tokens=1))
    assert driver.scheduler.plan(driver.now) is None
    driver.scheduler.cancel("paused", driver.now)
    driver.run()
    assert started(driver) == ["paused", "next"]


def test_rows_that_may_not_draw_keep_nobody_from_being_looked_at() -> None:
    """While all that run are paused the next request begins, whatever steps there are between."""
    driver = driver_of(config_of(admission_interval_steps=5))
    driver.offer(fakes.make_request("paused", granted_tokens=1, ignore_eos=True))
    driver.turn()
    driver.offer(fakes.make_request("next", tenant_id="other"))
    driver.turn()
    assert started(driver)[-1] == "next"


def test_a_long_prompt_does_not_rest_for_nobody() -> None:
    """Beside a row of another tenant that is paused each step has a part of it."""
    driver = driver_of(config_of(PRESETS["mixed"]), cost=DEAR, max_num_batched_tokens=64)
    driver.offer(request("paused", 3, tenant_id="other", granted_tokens=1))
    driver.turn()
    driver.offer(request("long", 560, tenant_id="long"))
    for _ in range(9):
        driver.turn()
    assert [prefilled(plan) for plan in driver.plans[1:]] == [64] * 8 + [48]


@pytest.mark.parametrize(
    ("num_tokens", "num_waiting", "is_brought"), [(140, 0, True), (150, 0, False), (140, 1, False)]
)
def test_prompts_that_steps_are_behind_with_are_no_rows_doing(
    num_tokens: int, num_waiting: int, is_brought: bool
) -> None:
    """Eight steps are needed for what is left of a prompt, or nine, or others are kept out."""
    driver = driver_of(
        PRESETS["mixed"], max_num_batched_tokens=16, max_model_len=200, num_blocks=200
    )
    driver.offer(request("long", num_tokens))
    for number in range(num_waiting):
        driver.offer(request(f"kept-out-{number}", 20))
    driver.turn()
    prefills = driver.scheduler._composer._shares.prefills
    assert prefills._mean_s.any()
    assert bool(prefills._brought_s.any()) == is_brought


def test_batch_work_passes_nobody_in_the_online_part_of_a_step() -> None:
    """Where one policy orders all bands, small batch work behind a large prompt waits as well."""
    config = config_of(max_bypasses=2)
    config = replace(config, fairness=replace(config.fairness, policy="priority"))
    driver = driver_of(config, num_blocks=20)
    driver.offer(request("runs", 64))
    driver.turn()
    driver.offer(request("large", 120))
    driver.offer(request("batch", 8, band=Band.BATCH))
    driver.turn()
    assert started(driver) == ["runs"]
    driver.run()
    assert list(dict.fromkeys(started(driver))) == ["runs", "large", "batch"]


def test_reserving_all_that_may_be_drawn_rules_preemption_out() -> None:
    """With room for 20 blocks, requests of up to 8 blocks run two at a time."""
    driver = driver_of(config_of(kv_reserve="max"), num_blocks=20, max_num_seqs=8)
    for n in range(5):
        driver.offer(request(f"r{n}", 34, max_tokens=30))
    driver.turn()
    assert started(driver) == ["r0", "r1"]
    driver.run()
    assert driver.scheduler.snapshot().num_preemptions == 0


def test_a_prompt_alone_may_be_reserved() -> None:
    """With prompts alone reserved more run at first, and some are sent back later."""
    driver = driver_of(config_of(kv_reserve="prompt"), num_blocks=20, max_num_seqs=8)
    for n in range(5):
        driver.offer(request(f"r{n}", 34, max_tokens=30))
    driver.turn()
    assert len(started(driver)) == 3
    driver.run()
    assert driver.scheduler.snapshot().num_preemptions > 0
    assert {output.finish_reason for output in driver.last.values()} == {FinishReason.LENGTH}


def test_a_higher_band_displaces_a_lower_one() -> None:
    """With all slots taken by lower bands, a request above them starts in the next step."""
    config = config_of()
    driver = driver_of(replace(config, preemption=replace(config.preemption, min_run_steps=1)))
    for n in range(4):
        driver.offer(request(f"low{n}", 8, band=Band.FLEX, tenant_id=f"t{n}"))
    driver.turn()
    driver.turn()
    driver.offer(request("high", 8, band=Band.PRIORITY))
    driver.turn()
    assert driver.plans[-1].preempted == ["low3"]
    assert [new.request_id for new in driver.plans[-1].admitted] == ["high"]
    driver.run()
    assert {output.finish_reason for output in driver.last.values()} == {FinishReason.LENGTH}


def test_equals_never_displace_each_other() -> None:
    """A full engine of one band keeps what it runs, whoever else of that band comes."""
    driver = driver_of(config_of())
    for n in range(8):
        driver.offer(request(f"r{n}", 8, tenant_id=f"t{n}"))
    driver.run()
    assert driver.scheduler.snapshot().num_preemptions == 0


def test_batch_work_takes_what_is_left_and_no_more() -> None:
    """A prompt of the batch band fills a step up to the time it may take, beside online rows."""
    driver = driver_of(config_of(harvest_step_s=0.05))
    driver.offer(request("online", 8))
    driver.turn()
    driver.offer(request("batch", 300, band=Band.BATCH, tenant_id="bulk"))
    driver.turn()
    assert prefilled(driver.plans[-1]) == 39
    assert len(driver.plans[-1].decodes) == 1


def test_a_batch_prompt_that_reads_much_makes_few_steps_long() -> None:
    """Where what it has so far takes longer than a step may beside online rows, it has a step now
    and then, a ninth of the time.
    """
    driver = driver_of(config_of(harvest_step_s=0.05), DEAR, max_model_len=2000)
    driver.offer(request("online", 8, max_tokens=900))
    driver.turn()
    began_s, long_s = driver.now, 0.0
    driver.offer(request("batch", 560, band=Band.BATCH))
    while driver.last["online"].finish_reason is None:
        before_s = driver.now
        driver.turn()
        took_s = driver.now - before_s
        long_s += took_s if took_s > 0.051 else 0.0
    assert 0.0 < long_s < (driver.now - began_s) / 8
    assert driver.last["batch"].finish_reason is FinishReason.LENGTH


def test_batch_prompts_that_find_much_are_not_in_one_step() -> None:
    """What a prompt finds in the cache is read as well: beside online rows one goes at a time."""
    config = replace(config_of(harvest_step_s=0.05), prefix_caching=True)
    driver = driver_of(config, DEAR, max_model_len=2000)
    driver.offer(request("first", 560, max_tokens=1))
    driver.run()
    driver.offer(request("online", 8, max_tokens=500))
    driver.turn()
    for name in "abc":
        driver.offer(request(name, 560, band=Band.BATCH))
    driver.run()
    assert max(len(plan.slices) for plan in driver.plans) == 1
    assert len(driver.last) == 5


def test_batch_rows_sit_a_tight_step_out() -> None:
    """When an online row is due, batch rows skip the step and keep their place."""
    driver = driver_of(config_of(dynamic_chunk=True, harvest_step_s=1.0), max_num_seqs=16)
    for n in range(8):
        driver.offer(request(f"b{n}", 8, band=Band.BATCH))
    driver.turn()
    driver.offer(request("online", 8, slo=Slo(tpot_s=0.0145 / 0.8)))
    driver.turn()
    driver.turn()
    # The online row and three others: 10 ms and 4 × 1 ms.
    assert len(driver.plans[-1].decodes) == 4
    driver.run()
    assert {output.finish_reason for output in driver.last.values()} == {FinishReason.LENGTH}


def test_online_work_sends_batch_work_away_at_once() -> None:
    """A batch that holds all blocks makes room for an online request in the very next step."""
    driver = driver_of(config_of(), num_blocks=40, max_num_seqs=8)
    for n in range(4):
        driver.offer(request(f"b{n}", 60, band=Band.BATCH, max_tokens=60, tenant_id=f"b{n}"))
    for _ in range(6):
        driver.turn()
    driver.offer(request("online", 150))
    driver.turn()
    assert driver.plans[-1].preempted
    assert [new.request_id for new in driver.plans[-1].admitted] == ["online"]
    driver.run()
    assert {output.finish_reason for output in driver.last.values()} == {FinishReason.LENGTH}


def test_what_batch_rows_are_to_hold_keeps_nobody_waiting() -> None:
    """A request fits now, and batch rows that would grow into what it needs go when they do."""
    driver = driver_of(config_of(kv_reserve="predicted"), num_blocks=40, max_num_seqs=8)
    for n in range(2):
        driver.offer(request(f"b{n}", 60, band=Band.BATCH, max_tokens=60, tenant_id=f"b{n}"))
    for _ in range(3):
        driver.turn()
    assert started(driver) == ["b0", "b1"]
    driver.offer(request("online", 60, max_tokens=60))
    driver.turn()
    assert [new.request_id for new in driver.plans[-1].admitted] == ["online"]
    driver.run()
    assert {output.finish_reason for output in driver.last.values()} == {FinishReason.LENGTH}


@pytest.mark.parametrize("share", [0.0, 0.2])
@pytest.mark.parametrize("is_running", [False, True])
def test_a_window_forces_batch_work_up_in_a_flood(share: float, *, is_running: bool) -> None:
    """It is done by the end of its window, whether it has begun before the flood or not."""
    shares = {Band.DEFAULT: 0.1, Band.DUE: share}
    config = SchedulerConfig(
        fairness=FairnessConfig(unit="tokens", band_shares=shares),
        composer=ComposerConfig(harvest_step_s=0.001, harvest_pause_s=0.0),
        admission=AdmissionConfig(predict_ttft=False),
    )
    driver = driver_of(config)
    batch = request("batch", 8, band=Band.BATCH, tenant_id="bulk", finish_by_s=80.0)
    if is_running:
        driver.offer(batch)
        driver.turn()

    def is_done(driver: Driver) -> bool:
        return "batch" in driver.last and driver.last["batch"].finish_reason is not None

    num_offered = 0
    while driver.now < 84.0 and not is_done(driver):
        while driver.scheduler.snapshot().queued < 4:
            driver.offer(request(f"o{num_offered}", 60))
            num_offered += 1
        if driver.now > 1.0 and not is_running:
            driver.offer(batch)
            is_running = True
        driver.turn()
        driver.take(driver.scheduler.take_expired())
    if share:
        assert 20.0 < driver.now < 80.0
        assert driver.last["batch"].finish_reason is FinishReason.LENGTH
    else:
        assert driver.now > 80.0


def test_batch_work_that_gives_way_does_so_for_somebody() -> None:
    """It is left out of steps with a prompt that has waited, and not of those without anything."""
    driver = driver_of(config_of(PRESETS["mixed"]), max_num_batched_tokens=64)
    driver.offer(request("batch", 3, band=Band.BATCH))
    for _ in range(3):
        driver.turn()
    driver.now += 5.0
    driver.offer(request("waited", 100, max_tokens=1, tenant_id="other"))
    for _ in range(3):
        driver.turn()
    had = [(prefilled(plan), len(plan.decodes)) for plan in driver.plans[-3:]]
    assert had == [(64, 0), (36, 0), (0, 1)]


def test_batch_rows_that_have_no_block_left_do_not_hang() -> None:
    """When only batch rows run and all need a block that is not there, one of them gives way."""
    driver = driver_of(config_of(batch_kv_headroom=0.0), num_blocks=12, max_num_seqs=8)
    for n in range(5):
        driver.offer(request(f"b{n}", 15, band=Band.BATCH, max_tokens=40, seed=n))
    driver.run()
    assert {output.finish_reason for output in driver.last.values()} == {FinishReason.LENGTH}
    assert driver.scheduler.snapshot().free_blocks == 12


@pytest.mark.parametrize("depth", [1, 2])
def test_expired_work_is_dropped_at_its_turn(depth: int) -> None:
    """A request that nobody waits for any more ends without having been computed."""
    config = config_of()
    config = replace(config, admission=replace(config.admission, drop_expired=True))
    driver = driver_of(config, max_num_seqs=1, depth=depth)
    driver.offer(request("first", 8, max_tokens=10))
    driver.turn()
    driver.offer(request("gone", 8, expires_s=0.05))
    driver.offer(request("next", 8))
    while driver.turn():
        driver.take(driver.scheduler.take_expired())
    assert driver.last["gone"].finish_reason is FinishReason.EXPIRED
    assert started(driver) == ["first", "next"]
    assert driver.scheduler.snapshot().num_expired == 1


def test_expired_work_ends_when_its_time_is_over() -> None:
    """Behind a row that runs for long, who has waited in vain learns it at once and not after."""
    config = config_of()
    config = replace(config, admission=replace(config.admission, drop_expired=True))
    driver = driver_of(config, max_num_seqs=1)
    driver.offer(request("runs", 8, max_tokens=200, slo=Slo(ttft_s=0.05)))
    driver.turn()
    driver.offer(request("patient", 8, slo=Slo(ttft_s=60.0)))
    driver.offer(request("gone", 8, slo=Slo(ttft_s=0.1)))
    while "gone" not in driver.last:
        driver.turn()
        driver.take(driver.scheduler.take_expired())
    assert driver.last["gone"].finish_reason is FinishReason.EXPIRED
    assert 0.1 <= driver.now < 0.15
    driver.run()
    assert driver.last["patient"].finish_reason is FinishReason.LENGTH
    assert driver.last["runs"].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("policy", ["vtc", "fcfs"])
def test_thousands_that_expire_at_once_end_over_several_plans(policy: str) -> None:
    """A plan ends a bounded number, the earliest first, and goes on with those that are in time."""
    config = config_of()
    admission = replace(config.admission, drop_expired=True)
    config = replace(config, admission=admission, fairness=FairnessConfig(policy=policy))
    driver = driver_of(config, max_num_seqs=2)
    driver.offer(request("runs", 8, max_tokens=40))
    driver.turn()
    names = [f"gone{n}" for n in range(1_000)]
    for n, name in enumerate(names):
        driver.offer(request(name, 8, expires_s=driver.now + 0.001 * (1 + n) / 1_000))
    driver.offer(request("patient", 8, max_tokens=3))
    driver.now += 0.002
    dropped: list[str] = []
    while driver.turn():
        expired = driver.scheduler.take_expired()
        assert len(expired) <= MAX_DROPPED
        dropped += [output.request_id for output in expired]
        driver.take(expired)
    assert sorted(dropped) == sorted(names)
    if policy == "fcfs":
        assert dropped == names
    assert driver.last["patient"].finish_reason is FinishReason.LENGTH


def test_prompts_under_way_take_the_scores_that_a_newcomer_was_to_have() -> None:
    """A request whose prompt is to be scored waits while one under way is scored instead."""
    info = replace(fakes.make_engine().info, max_num_prompt_logprobs=3)
    scheduler = Scheduler(info, config_of())
    for name in ("first", "second"):
        asked = request(name, 6)
        scheduler.offer(replace(asked, params=replace(asked.params, prompt_logprobs=0)), 0.0)
    score = TokenLogprobs(token_id=1, logprob=0.0, rank=1)
    for step_id in range(2):
        plan = scheduler.plan(0.0)
        assert plan is not None
        # Of six tokens three a step, and nothing of the other prompt.
        assert [(chunk.slot, chunk.n_tokens) for chunk in plan.slices] == [(0, 3)]
        drawn = array("i", [0] * step_id)
        scores = [score] * (3 - step_id)
        scheduler.report(
            StepResult(plan.step_id, drawn, drawn, 1.0, prompt_logprobs={0: scores}), 0.0
        )


def test_a_preset_is_a_whole_configuration() -> None:
    """What a composer is asked for in tokens is never more than the engine takes."""
    driver = driver_of(config_of(max_num_batched_tokens=10_000), max_num_batched_tokens=32)
    driver.offer(request("long", 200))
    driver.turn()
    assert prefilled(driver.plans[0]) == 32
    assert ComposerConfig().max_num_batched_tokens is None


def test_who_is_let_in_on_its_bands_share_is_marked() -> None:
    """A row admitted while a higher band waits is guaranteed; one with nobody above it is not."""
    config = replace(config_of(), fairness=FairnessConfig(policy="vtc"))
    driver = driver_of(config, max_num_seqs=2)
    driver.offer(request("free", 8, band=Band.FLEX, tenant_id="f"))
    driver.turn()
    driver.offer(request("owed", 8, band=Band.FLEX, tenant_id="f"))
    driver.offer(request("high", 8, band=Band.DEFAULT, tenant_id="d"))
    tree = driver.scheduler._lifecycle.waiting
    tree.bands["FLEX"].counter = 1e6
    tree.bands["FLEX"].above.order.update(tree.bands["FLEX"], driver.now)
    driver.turn()
    marks = {row.request_id: row.is_guaranteed for row in driver.scheduler._running}
    assert marks == {"free": False, "owed": True}


def test_a_promoted_prompt_is_in_a_step_once() -> None:
    """Cut for others' rows, it does not have what is left for the batch band besides."""
    line = LinearCost(intercept_s=0.005, per_token_s=1.5e-5)
    cost = StepCost("line", line, line)
    driver = Driver(
        fakes.make_engine(
            cost=cost,
            max_num_batched_tokens=2048,
            max_model_len=8000,
            max_num_seqs=16,
            num_blocks=4000,
            block_size=16,
        )
    )
    driver.scheduler = Scheduler(driver.engine.info, PRESETS["mixed"], step_model=StepModel(cost))
    driver.offer(fakes.make_request("row", tenant_id="on", max_tokens=900, ignore_eos=True))
    for number in range(2):
        prompt = [number, 1] * 3500
        driver.offer(
            fakes.make_request(
                f"b{number}", tenant_id="batch", prompt=prompt, band=Band.BATCH, finish_by_s=1e9
            )
        )
    for _ in range(2):
        driver.turn()
    for number in range(2):
        sequence = driver.scheduler._lifecycle.find(f"b{number}")
        assert sequence is not None
        driver.scheduler._lifecycle._promote(sequence, Band.DUE, driver.now)
    least = 2048
    for _ in range(7):
        driver.turn()
        slots = [chunk.slot for chunk in driver.plans[-1].slices]
        assert len(slots) == len(set(slots))
        least = min(least, driver.plans[-1].num_tokens)
    assert least < 1024, "it was cut"


@pytest.mark.parametrize("organisation_id", ["", "co"])
@pytest.mark.parametrize(("weight", "few_drawn"), [(1.0, 75), (2.0, 100)])
def test_batch_rows_share_what_is_left_by_tenants(
    organisation_id: str, weight: float, few_drawn: int
) -> None:
    """Of twelve rows of one tenant and four of another that came later, five run in each step."""
    driver = driver_of(_of_shares(harvest_step_s=0.0162), max_num_seqs=20)
    for n in range(16):
        who, its_weight = ("many", 1.0) if n < 12 else ("few", weight)
        bulk = request(
            f"{who}{n}", 8, tenant_id=who, weight=its_weight, band=Band.BATCH, max_tokens=500
        )
        driver.offer(replace(bulk, organisation_id=organisation_id))
    driver.turn()
    driver.offer(request("online", 8, max_tokens=500))
    driver.turn()
    # Who had fewer prompts has more rows until that is even.
    for _ in range(60):
        driver.turn()
    before = _num_drawn(driver)
    for _ in range(30):
        driver.turn()
    drawn = _num_drawn(driver) - before
    assert drawn["few"] + drawn["many"] == 150
    assert drawn["few"] == pytest.approx(few_drawn, abs=5)


def test_a_batch_row_that_never_fits_keeps_no_other_out() -> None:
    """One whose context costs more than the longest step waits beside an online row alone."""
    line = replace(_LINE, per_decode_context_token_s=0.0005)
    cost = StepCost("by context", line, line)
    driver = driver_of(_of_shares(harvest_step_s=0.05), cost, max_num_seqs=8)
    for name, num_tokens, weight in (("huge", 300, 1e3), ("tiny", 4, 1.0)):
        bulk = request(name, num_tokens, tenant_id=name, weight=weight, max_tokens=20)
        driver.offer(replace(bulk, band=Band.BATCH))
    driver.turn()
    driver.offer(request("online", 8, max_tokens=40))
    while "online" not in driver.last or driver.last["online"].finish_reason is None:
        driver.turn()
    assert driver.last["tiny"].finish_reason is FinishReason.LENGTH
    assert driver.last["huge"].finish_reason is None
    driver.run()
    assert driver.last["huge"].finish_reason is FinishReason.LENGTH


def _of_shares(**composer: object) -> SchedulerConfig:
    return config_of(SchedulerConfig(admission=AdmissionConfig(predict_ttft=False)), **composer)


def _num_drawn(driver: Driver) -> Counter[str]:
    drawn: Counter[str] = Counter()
    for name, token_ids in driver.tokens.items():
        drawn[name.rstrip("0123456789")] += len(token_ids)
    return drawn
