"""The scheduler on its own, driven step by step in virtual time with the simulated engine."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

import pytest

import fakes
from engine.contract import StepResult
from engine.step_cost import LinearCost, StepCost
from fakes import Driver
from scheduler.config import AdmissionConfig, SchedulerConfig
from scheduler.core import Scheduler
from scheduler.learn import StepModel
from scheduler.request import Admit, Band, FinishReason, Reject, RejectCode, Slo
from scheduler.state import Load


@pytest.mark.parametrize("depth", [1, 2])
def test_request_runs_to_its_length(depth: int) -> None:
    """A request draws exactly max_tokens tokens, those that the engine makes for it."""
    driver = Driver(fakes.make_engine(depth=depth))
    request = fakes.make_request(max_tokens=9, seed=7)
    assert driver.offer(request) == Admit(0)
    driver.run()
    assert (driver.tokens["r"], driver.last["r"].finish_reason) == fakes.expected_tokens(
        request, driver.engine.info
    )
    assert driver.last["r"].num_output_tokens == 9


@pytest.mark.parametrize("depth", [1, 2])
def test_end_token_is_counted_but_not_given(depth: int) -> None:
    """A stop token ends the request, stays out of its tokens and counts as output."""
    engine = fakes.make_engine(depth=depth)
    tokens, _ = fakes.expected_tokens(fakes.make_request(max_tokens=9), engine.info)
    driver = Driver(engine)
    driver.offer(fakes.make_request(max_tokens=9, stop_token_ids=(tokens[5],)))
    driver.run()
    end = tokens.index(tokens[5])
    assert driver.tokens["r"] == tokens[:end]
    assert driver.last["r"].finish_reason is FinishReason.STOP
    assert driver.last["r"].num_output_tokens == end + 1


@pytest.mark.parametrize(("ignore_eos", "reason"), [(False, "stop"), (True, "length")])
def test_model_end_token_can_be_ignored(ignore_eos: bool, reason: str) -> None:
    """The model's own end token ends a request unless it asks to ignore it."""
    driver = Driver(fakes.make_engine(vocab_size=2, eos_token_ids=frozenset({0, 1})))
    driver.offer(fakes.make_request(max_tokens=5, ignore_eos=ignore_eos))
    driver.run()
    assert driver.last["r"].finish_reason == reason
    assert driver.last["r"].num_output_tokens == (5 if ignore_eos else 1)


class Counted(dict[bytes, int]):
    """Count who is looked up."""

    num_asked = 0

    def get(self, name: bytes, default: Any = None) -> Any:
        self.num_asked += 1
        return super().get(name, default)

    def __getitem__(self, name: bytes) -> int:
        self.num_asked += 1
        return super().__getitem__(name)


def test_an_offer_looks_nothing_up_that_its_preparation_has_found() -> None:
    """A long prompt that is cached is looked up without the lock; what is gone since, with it."""
    driver = Driver(fakes.make_engine(num_blocks=16))
    driver.offer(fakes.make_request("first", prompt=range(1, 41)))
    driver.run()
    scheduler, pool = driver.scheduler, driver.scheduler._pool
    pool._block_of_hash = counted = Counted(pool._block_of_hash)
    for name, num_other, num_cached in (("again", 0, 36), ("once_more", 40, 20)):
        asked = fakes.make_request(name, prompt=range(1, 41), arrival_s=driver.now)
        prepared = scheduler.prepare(asked)
        if num_other:
            driver.offer(fakes.make_request("other", prompt=[7] * num_other))
            driver.run()
        counted.num_asked = 0
        assert isinstance(scheduler.offer(asked, driver.now, prepared), Admit)
        assert (counted.num_asked > 0) is (num_other > 0)
        driver.run()
        assert driver.last[name].num_cached_tokens == num_cached


def test_request_over_the_context_is_refused() -> None:
    """Prompt and max_tokens over the model's context are refused and nothing is kept."""
    driver = Driver(fakes.make_engine(max_model_len=16))
    assert isinstance(driver.offer(fakes.make_request(max_tokens=13)), Admit)
    refusal = driver.offer(fakes.make_request("big", max_tokens=14))
    assert isinstance(refusal, Reject)
    assert refusal.code is RejectCode.CONTEXT_LENGTH_EXCEEDED
    assert driver.scheduler.snapshot().queued == 1


def test_prompt_over_the_pool_is_refused() -> None:
    """A prompt that cannot fit the pool with one token is refused; one that can is taken."""
    driver = Driver(fakes.make_engine(num_blocks=2))
    refusal = driver.offer(fakes.make_request("big", prompt=range(8), max_tokens=1))
    assert isinstance(refusal, Reject)
    assert refusal.code is RejectCode.CONTEXT_LENGTH_EXCEEDED
    assert isinstance(driver.offer(fakes.make_request(prompt=range(7), max_tokens=1)), Admit)


def test_request_that_outgrows_the_pool_ends_with_length() -> None:
    """A request alone in a pool smaller than its max_tokens ends where the pool does."""
    driver = Driver(fakes.make_engine(num_blocks=2))
    driver.offer(fakes.make_request(prompt=range(3), max_tokens=40))
    driver.run()
    assert driver.last["r"].finish_reason is FinishReason.LENGTH
    assert len(driver.tokens["r"]) == 5
    assert driver.scheduler.snapshot().num_preemptions == 0


def test_full_queue_refuses_with_a_time() -> None:
    """A request beyond the queue's bound is refused as overload, with a time to come back."""
    driver = Driver(fakes.make_engine(), max_num_queued=1)
    driver.offer(fakes.make_request("a"))
    refusal = driver.offer(fakes.make_request("b"))
    assert isinstance(refusal, Reject)
    assert refusal.code is RejectCode.OVERLOADED
    # Spread, so that not all come back at once.
    assert refusal.retry_after_s is not None
    assert 0.8 <= refusal.retry_after_s <= 1.2


def test_long_prompt_is_computed_in_chunks_beside_decodes() -> None:
    """While a long prompt prefills, rows that decode still get a token in every step."""
    driver = Driver(fakes.make_engine(max_num_batched_tokens=5))
    driver.offer(fakes.make_request("short", max_tokens=12))
    driver.turn()
    driver.offer(fakes.make_request("long", prompt=range(20), max_tokens=2))
    driver.run()
    chunks = [[s.n_tokens for s in plan.slices] for plan in driver.plans]
    assert chunks[:7] == [[3], [4], [4], [4], [4], [4], []]
    assert all(len(plan.decodes) for plan in driver.plans[1:7])


def test_order_is_of_arrival_and_stops_at_a_head_that_does_not_fit() -> None:
    """A small request does not overtake a large one that waits for blocks before it."""
    driver = Driver(fakes.make_engine(num_blocks=8))
    driver.offer(fakes.make_request("first", prompt=range(16), max_tokens=4, salt=b"1"))
    driver.turn()
    driver.offer(fakes.make_request("large", prompt=range(20), arrival_s=1.0, salt=b"2"))
    driver.offer(fakes.make_request("small", prompt=range(2), arrival_s=2.0, salt=b"3"))
    driver.run()
    admitted = [s.request_id for plan in driver.plans for s in plan.admitted]
    assert admitted == ["first", "large", "small"]


def test_second_prompt_starts_behind_the_shared_prefix() -> None:
    """A prompt with a cached prefix computes only the rest and says how much was cached."""
    driver = Driver(fakes.make_engine())
    driver.offer(fakes.make_request("a", prompt=range(14)))
    driver.run()
    driver.offer(fakes.make_request("b", prompt=range(14)))
    driver.offer(fakes.make_request("other", prompt=range(14), salt=b"globex"))
    driver.run()
    assert driver.last["a"].num_cached_tokens == 0
    assert driver.last["b"].num_cached_tokens == 12
    assert driver.last["other"].num_cached_tokens == 0
    [chunk, _] = next(plan.slices for plan in driver.plans if len(plan.slices) == 2)
    assert (chunk.start, chunk.n_tokens) == (12, 2)


@pytest.mark.parametrize("organisation_id", ["", "org"])
def test_what_one_caches_is_not_pushed_out_by_a_flood_of_others(organisation_id: str) -> None:
    """Prompts of one tenant, or of many of one organisation, take each other's places alone."""
    driver = Driver(fakes.make_engine(num_blocks=32))
    driver.offer(fakes.make_request("before", prompt=range(29)))
    driver.run()
    for i in range(30):
        sender = f"flood-{i % 3 if organisation_id else 0}"
        request = fakes.make_request(
            f"{i}", prompt=[i] * 29, tenant_id=sender, salt=sender.encode()
        )
        driver.offer(replace(request, organisation_id=organisation_id))
        driver.run()
    driver.offer(fakes.make_request("after", prompt=range(29)))
    driver.run()
    assert driver.last["after"].num_cached_tokens == 28


def test_prefix_caching_can_be_off() -> None:
    """Without prefix caching nothing is ever cached."""
    driver = Driver(fakes.make_engine(), prefix_caching=False)
    for request_id in "ab":
        driver.offer(fakes.make_request(request_id, prompt=range(14)))
        driver.run()
    assert driver.last["b"].num_cached_tokens == 0
    assert driver.scheduler.snapshot().cached_blocks == 0


@pytest.mark.parametrize("depth", [1, 2])
def test_cancel_frees_at_once(depth: int) -> None:
    """A cancelled request's slot and blocks are free at once, its later tokens dropped."""
    driver = Driver(fakes.make_engine(depth=depth))
    driver.offer(fakes.make_request(prompt=range(10), max_tokens=20))
    for _ in range(4):
        driver.turn()
    output = driver.scheduler.cancel("r", driver.now)
    assert output is not None
    assert output.finish_reason is FinishReason.CANCELLED
    snapshot = driver.scheduler.snapshot()
    assert (snapshot.running, snapshot.queued, snapshot.free_blocks) == (0, 0, 32)
    before = len(driver.tokens["r"])
    driver.run()
    assert len(driver.tokens["r"]) == before
    assert driver.scheduler.cancel("r", driver.now) is None


def test_cancelled_while_waiting_is_never_run() -> None:
    """A request that is cancelled in the queue is skipped."""
    driver = Driver(fakes.make_engine(max_num_seqs=1))
    for request_id in "abc":
        driver.offer(fakes.make_request(request_id))
    driver.scheduler.cancel("b", driver.now)
    driver.run()
    assert [s.request_id for plan in driver.plans for s in plan.admitted] == ["a", "c"]


@pytest.mark.parametrize("depth", [1, 2])
def test_grant_is_never_passed(depth: int) -> None:
    """A request pauses where its grant ends and goes on when the grant is extended."""
    driver = Driver(fakes.make_engine(depth=depth))
    request = fakes.make_request(max_tokens=10, granted_tokens=3)
    driver.offer(request)
    driver.run()
    assert len(driver.tokens["r"]) == 3
    assert driver.last["r"].finish_reason is None
    driver.scheduler.extend("r", 8, driver.now)
    driver.run()
    assert len(driver.tokens["r"]) == 8
    driver.scheduler.extend("r", None, driver.now)
    # An answer that was overtaken takes nothing back.
    driver.scheduler.extend("r", 8, driver.now)
    driver.run()
    assert driver.tokens["r"] == fakes.expected_tokens(request, driver.engine.info)[0]


def test_denied_extension_ends_with_length() -> None:
    """A paused request whose extension is denied ends with `length` at once."""
    driver = Driver(fakes.make_engine())
    driver.offer(fakes.make_request(max_tokens=10, granted_tokens=3))
    driver.run()
    output = driver.scheduler.finish_granted("r", driver.now)
    assert output is not None
    assert (output.finish_reason, output.num_output_tokens) == (FinishReason.LENGTH, 3)
    assert driver.scheduler.snapshot().free_blocks == 32


def test_early_denial_lets_the_grant_be_used() -> None:
    """A request that is told of the denial ahead of its grant's end uses the rest of it."""
    driver = Driver(fakes.make_engine())
    driver.offer(fakes.make_request(max_tokens=10, granted_tokens=5))
    driver.turn()
    assert driver.scheduler.finish_granted("r", driver.now) is None
    driver.run()
    assert len(driver.tokens["r"]) == 5
    assert driver.last["r"].finish_reason is FinishReason.LENGTH


def test_answers_about_ended_requests_are_ignored() -> None:
    """An extension or denial that crosses the request's end changes nothing."""
    driver = Driver(fakes.make_engine())
    driver.scheduler.extend("gone", 8, driver.now)
    assert driver.scheduler.finish_granted("gone", driver.now) is None


def test_paused_victim_does_not_block_the_queue() -> None:
    """A paused request that lost its blocks waits aside until its grant is extended."""
    driver = Driver(fakes.make_engine(num_blocks=6, max_num_seqs=3))
    old = fakes.make_request("old", prompt=range(4), max_tokens=20, salt=b"1", arrival_s=0.0)
    paused = fakes.make_request(
        "paused", prompt=range(5), max_tokens=8, granted_tokens=2, salt=b"2", arrival_s=1.0
    )
    driver.offer(old)
    driver.offer(paused)
    while not driver.scheduler.snapshot().num_preemptions:
        assert driver.turn()
    later = fakes.make_request("later", prompt=range(3), max_tokens=2, salt=b"3", arrival_s=2.0)
    driver.offer(later)
    driver.run()
    assert len(driver.tokens["paused"]) == 2
    assert driver.last["later"].finish_reason is FinishReason.LENGTH
    driver.scheduler.extend("paused", None, driver.now)
    driver.run()
    assert driver.tokens["paused"] == fakes.expected_tokens(paused, driver.engine.info)[0]


@pytest.mark.parametrize("depth", [1, 2])
def test_failed_step_takes_its_rows_only(depth: int) -> None:
    """A step that fails ends its rows; who waited is served by the reset engine."""
    driver = Driver(fakes.make_engine(depth=depth, max_num_seqs=1))
    driver.offer(fakes.make_request("doomed", max_tokens=9))
    driver.offer(fakes.make_request("spared", max_tokens=9, arrival_s=1.0))
    driver.turn()
    plan = driver.scheduler.plan(driver.now)
    assert plan is not None
    driver.fail(plan.step_id)
    assert driver.last["doomed"].finish_reason is FinishReason.ERROR
    assert driver.last["doomed"].error == "fault"
    assert driver.scheduler.snapshot().free_blocks == 32
    driver.run()
    assert len(driver.tokens["spared"]) == 9


def test_rows_outside_a_failed_step_start_again_with_what_they_have() -> None:
    """A row that the failed step did not compute loses its KV but none of its tokens."""
    driver = Driver(fakes.make_engine())
    spared = fakes.make_request("spared", max_tokens=9, granted_tokens=2, seed=3)
    driver.offer(spared)
    driver.run()
    driver.offer(fakes.make_request("doomed", max_tokens=9))
    plan = driver.scheduler.plan(driver.now)
    assert plan is not None
    driver.fail(plan.step_id)
    driver.scheduler.extend("spared", None, driver.now)
    driver.run()
    assert driver.tokens["spared"] == fakes.expected_tokens(spared, driver.engine.info)[0]


@pytest.mark.parametrize("with_token", [True, False])
def test_failed_row_ends_alone(with_token: bool) -> None:
    """A row that the engine gives up on ends with an error and its neighbours go on."""
    driver = Driver(fakes.make_engine())
    good, bad = fakes.make_request("good", seed=1), fakes.make_request("bad", seed=2)
    driver.offer(good)
    driver.offer(bad)
    driver.turn()
    plan = driver.scheduler.plan(driver.now)
    assert plan is not None
    result = driver.engine.collect(driver.engine.launch(plan))
    row = 1
    slots, token_ids = list(result.slots), list(result.token_ids)
    failed = {slots[row]: "not a number"}
    if not with_token:
        del slots[row], token_ids[row]
    driver.take(
        driver.scheduler.report(
            StepResult(result.step_id, array("i", slots), array("i", token_ids), 1.0, failed), 1.0
        )
    )
    assert driver.last["bad"].finish_reason is FinishReason.ERROR
    assert driver.last["bad"].num_output_tokens == 1
    driver.run()
    assert driver.tokens["good"] == fakes.expected_tokens(good, driver.engine.info)[0]


def test_nothing_that_a_failed_row_computed_is_found_again() -> None:
    """The blocks of a row that the engine gave up on are not shared: they may be what broke it."""
    driver = Driver(fakes.make_engine())
    driver.offer(fakes.make_request("bad", prompt=range(9), max_tokens=9))
    driver.turn()
    assert driver.scheduler.snapshot().cached_blocks == 2
    plan = driver.scheduler.plan(driver.now)
    assert plan is not None
    result = driver.engine.collect(driver.engine.launch(plan))
    failed = {result.slots[0]: "not a number"}
    driver.take(
        driver.scheduler.report(
            StepResult(result.step_id, array("i"), array("i"), 1.0, failed), 1.0
        )
    )
    counts = driver.scheduler.snapshot()
    assert (counts.cached_blocks, counts.free_blocks) == (0, 32)


def test_reset_ends_everything() -> None:
    """A reset ends every request with an error and all blocks are back, none of them cached."""
    driver = Driver(fakes.make_engine(max_num_seqs=1))
    for request_id in "ab":
        driver.offer(fakes.make_request(request_id, prompt=range(9), max_tokens=9))
    driver.turn()
    driver.take(driver.scheduler.reset("over", driver.now))
    assert {output.finish_reason for output in driver.last.values()} == {FinishReason.ERROR}
    snapshot = driver.scheduler.snapshot()
    assert (snapshot.queued, snapshot.running) == (0, 0)
    assert (snapshot.free_blocks, snapshot.cached_blocks) == (32, 0)


def test_snapshot_counts_what_was_done() -> None:
    """Counters hold prompts, cached and output tokens of the requests served."""
    driver = Driver(fakes.make_engine())
    for request_id in "ab":
        driver.offer(fakes.make_request(request_id, prompt=range(9), max_tokens=3))
        driver.run()
    snapshot = driver.scheduler.snapshot()
    assert snapshot.num_finished == 2
    assert (snapshot.num_prompt_tokens, snapshot.num_cached_tokens) == (18, 8)
    assert (snapshot.num_output_tokens, snapshot.num_steps) == (6, 6)


def test_the_last_places_are_for_those_below_their_share() -> None:
    """A tenant that floods the queue leaves room in it for another that has nothing there."""
    driver = Driver(fakes.make_engine(), max_num_queued=20)
    answers = [
        driver.offer(fakes.make_request(f"a{n}", tenant_id="flood", max_tokens=2))
        for n in range(30)
    ]
    refusals = [answer for answer in answers if isinstance(answer, Reject)]
    assert len(answers) - len(refusals) == 18
    assert {refusal.code for refusal in refusals} == {RejectCode.TENANT_LIMITED}
    calm = fakes.make_request("b", tenant_id="calm", max_tokens=2)
    assert isinstance(driver.offer(calm), Admit)


def test_load_says_how_full_the_scheduler_is() -> None:
    """Blocks, places and what waits in each band show up as shares, and go when all is done."""
    config = SchedulerConfig(admission=AdmissionConfig(max_num_queued=4))
    driver = Driver(fakes.make_engine(max_num_seqs=1))
    driver.scheduler = Scheduler(driver.engine.info, config)
    assert driver.scheduler.load() == Load(kv=0.0, queue=0.0, default_wait=0.0, flex_wait=0.0)
    for name, band in (("running", Band.DEFAULT), ("waits", Band.DEFAULT), ("flex", Band.FLEX)):
        driver.offer(fakes.make_request(name, prompt=range(9), band=band))
        driver.turn()
    load = driver.scheduler.load()
    assert load.kv == 3 / 32
    assert load.queue == 2 / 4
    assert 0.0 < load.default_wait < load.flex_wait
    driver.run()
    assert driver.scheduler.load().queue == 0.0


def test_batch_work_counts_as_no_load() -> None:
    """It makes room for whatever comes: the ladder sees the rest, the worker what is left to it."""
    config = SchedulerConfig(admission=AdmissionConfig(max_num_queued=4))
    driver = Driver(fakes.make_engine(max_num_seqs=2))
    driver.scheduler = Scheduler(driver.engine.info, config)
    for name, band in (("a", Band.BATCH), ("b", Band.BATCH), ("c", Band.BATCH)):
        driver.offer(fakes.make_request(name, prompt=range(9), band=band))
    driver.turn()
    load, room = driver.scheduler.load(), driver.scheduler.room()
    assert (load.kv, load.queue) == (0.0, 0.0)
    assert (room.num_slots, room.num_batch, room.num_online_waiting) == (2, 3, 0)
    assert room.kv > 0.0
    assert driver.scheduler.has_batch_work_alone()
    driver.offer(fakes.make_request("online", prompt=range(9), band=Band.DEFAULT))
    assert not driver.scheduler.has_batch_work_alone()
    assert driver.scheduler.load().queue == 1 / 4
    assert driver.scheduler.room().num_online_waiting == 1


def test_a_promise_that_no_machine_keeps_is_no_deadline() -> None:
    """A prompt that alone takes longer than promised waits like one that was promised nothing."""
    line = LinearCost(intercept_s=0.0, per_token_s=1.0)
    model = StepModel(StepCost("slow", line, line))
    driver = Driver(fakes.make_engine())
    driver.scheduler = Scheduler(driver.engine.info, step_model=model)
    request = fakes.make_request(prompt=range(20), slo=Slo(ttft_s=2.0))
    assert driver.offer(request) == Admit(0, is_promised=False)
    sequence = driver.scheduler._lifecycle.find("r")
    assert sequence is not None
    assert sequence.deadline_s == driver.scheduler.config.fairness.best_effort_ttft_s


def test_time_between_steps_counts_as_the_machines() -> None:
    """What windows reckon a machine does in a second goes by all time in which there was work."""
    driver = Driver(fakes.make_engine())
    driver.offer(fakes.make_request(max_tokens=6, ignore_eos=True))
    driver.turn()
    driver.now += 2.0
    driver.turn()
    assert driver.scheduler._lifecycle.windows._busy_s > 2.0


def test_time_of_another_engine_is_no_cost_of_a_step() -> None:
    """A step's price is learned without it; how long the machine was busy has it."""
    driver = Driver(fakes.make_engine())
    scheduler = driver.scheduler
    driver.offer(fakes.make_request(max_tokens=6, ignore_eos=True))
    driver.turn()
    before = scheduler.counts().seconds.total
    driver.now += 2.0
    plan = scheduler.plan(driver.now)
    assert plan is not None
    result = driver.engine.collect(driver.engine.launch(plan))
    scheduler.report(result, driver.now, waited_s=2.0)
    assert scheduler.counts().seconds.total - before == result.step_s
    assert scheduler._lifecycle.windows._busy_s > 2.0
