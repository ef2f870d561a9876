"""What the scheduler says of a request when it ends: why it waited, what it was sent back for."""

from __future__ import annotations

from dataclasses import replace

import pytest

import fakes
from decode_contest import Contest, Flood
from fakes import Driver
from scheduler.config import PRESETS, SchedulerConfig, first_come
from scheduler.core import Scheduler
from scheduler.facts import Preempted, PreemptionCause, RequestFacts, WaitCause
from scheduler.request import Band, FinishReason
from scheduler.sequence import Status


def facts_of(driver: Driver, request_id: str = "r") -> RequestFacts:
    """Return the facts of a request that has ended, whose times must add up."""
    facts = driver.last[request_id].facts
    assert facts is not None
    begun_s = facts.ended_s if facts.admitted_s is None else facts.admitted_s
    assert sum(facts.waits_s.values()) == pytest.approx(begun_s - facts.queued_s)
    assert all(span_s > 0.0 for span_s in (*facts.waits_s.values(), *facts.rests_s.values()))
    if facts.first_token_s is not None:
        assert facts.queued_s <= begun_s < facts.first_token_s <= facts.ended_s
        assert sum(facts.rests_s.values()) <= facts.ended_s - facts.first_token_s + 1e-9
        assert 1 <= facts.num_chunks <= facts.num_prefill_steps
    return facts


def driver_with(config: SchedulerConfig, **engine: int) -> Driver:
    driver = Driver(fakes.make_engine(**engine))
    driver.scheduler = Scheduler(driver.engine.info, config)
    return driver


@pytest.mark.parametrize("depth", [1, 2])
def test_a_request_alone_waits_for_nothing(depth: int) -> None:
    """It has its slot at once, its token a step later, and no part of its time is unexplained."""
    driver = Driver(fakes.make_engine(depth=depth))
    driver.now = 5.0
    driver.offer(fakes.make_request(max_tokens=4))
    driver.run()
    assert facts_of(driver) == RequestFacts(
        queued_s=5.0,
        num_ahead=0,
        admitted_s=5.0,
        first_token_s=6.0,
        ended_s=9.0,
        num_chunks=1,
        num_prefill_steps=1,
        num_output_tokens=4,
    )


def test_only_the_last_output_has_them() -> None:
    """Facts come once: outputs before the last have none."""
    driver = Driver(fakes.make_engine())
    driver.offer(fakes.make_request(max_tokens=2))
    driver.turn()
    assert driver.last["r"].num_output_tokens == 1
    assert driver.last["r"].facts is None
    driver.turn()
    assert facts_of(driver).num_output_tokens == 2


def test_who_comes_during_a_step_waits_for_it() -> None:
    """With room for it, a request waits for nothing but the step that runs when it comes."""
    driver = Driver(fakes.make_engine())
    driver.offer(fakes.make_request("first", max_tokens=3))
    driver.turn()
    driver.scheduler.offer(fakes.make_request("second", arrival_s=0.25), 0.25)
    driver.run()
    facts = facts_of(driver, "second")
    assert facts.waits_s == {WaitCause.STEP: 0.75}
    assert (facts.longest_step_s, facts.longest_step_tokens) == (1.0, 3)


def test_where_all_slots_are_taken_it_waits_for_one() -> None:
    """Behind the only row a request waits for slots, until that one ends."""
    driver = Driver(fakes.make_engine(max_num_seqs=1))
    driver.offer(fakes.make_request("first", max_tokens=4))
    driver.offer(fakes.make_request("second"))
    driver.run()
    facts = facts_of(driver, "second")
    assert facts.waits_s == {WaitCause.SLOTS: 4.0}
    assert facts.num_ahead == 1


def test_where_the_cache_is_full_it_waits_for_blocks() -> None:
    """A request that does not fit beside a row waits for blocks, and so does who is behind it."""
    driver = Driver(fakes.make_engine(num_blocks=8))
    driver.offer(fakes.make_request("first", prompt=range(16), max_tokens=4, salt=b"1"))
    driver.turn()
    driver.offer(fakes.make_request("large", prompt=range(20), salt=b"2"))
    driver.offer(fakes.make_request("small", prompt=range(2), salt=b"3"))
    driver.run()
    assert facts_of(driver, "large").waits_s == {WaitCause.BLOCKS: 3.0}
    assert facts_of(driver, "small").waits_s.keys() == {WaitCause.BLOCKS, WaitCause.PROMPTS}


def test_behind_a_long_prompt_it_waits_for_tokens_of_steps() -> None:
    """While a long prompt takes all tokens of steps, a request waits, and is told of such a step.

    The long prompt itself is in each of the steps until its first token.
    """
    driver = Driver(fakes.make_engine(max_num_batched_tokens=5))
    driver.offer(fakes.make_request("long", prompt=range(20)))
    driver.offer(fakes.make_request("short"))
    driver.run()
    facts = facts_of(driver, "short")
    assert facts.waits_s == {WaitCause.PROMPTS: 4.0}
    assert (facts.longest_step_s, facts.longest_step_tokens) == (1.0, 5)
    long = facts_of(driver, "long")
    assert (long.num_chunks, long.num_prefill_steps, long.longest_step_s) == (4, 4, 0.0)


def test_where_the_queue_is_looked_at_now_and_then_it_waits_for_that() -> None:
    """Where newcomers are let in every fourth step, the steps in between are the interval's."""
    config = first_come()
    config = replace(config, composer=replace(config.composer, admission_interval_steps=4))
    driver = driver_with(config)
    driver.offer(fakes.make_request("first", max_tokens=9))
    driver.turn()
    driver.offer(fakes.make_request("second"))
    driver.run()
    waits_s = facts_of(driver, "second").waits_s
    assert waits_s == {WaitCause.INTERVAL: 4.0}


def test_who_is_held_waits_for_the_prompt_that_another_computes() -> None:
    """Of two with one prompt the second waits for the first, and finds it in the cache."""
    driver = Driver(fakes.make_engine())
    driver.offer(fakes.make_request("leader", prompt=range(12)))
    driver.offer(fakes.make_request("follower", prompt=range(12)))
    driver.run()
    facts = facts_of(driver, "follower")
    assert facts.waits_s == {WaitCause.HELD: 1.0}
    assert facts.num_cached_tokens == 8


def test_who_is_cancelled_while_held_was_held_to_its_end() -> None:
    """The wait for another's prompt counts though it was in vain."""
    driver = Driver(fakes.make_engine())
    driver.offer(fakes.make_request("leader", prompt=range(12)))
    driver.offer(fakes.make_request("follower", prompt=range(12)))
    assert driver.scheduler.plan(0.0) is not None
    output = driver.scheduler.cancel("follower", 0.5)
    assert output is not None
    driver.take([output])
    facts = facts_of(driver, "follower")
    assert (facts.waits_s, facts.admitted_s) == ({WaitCause.HELD: 0.5}, None)


def test_batch_work_waits_for_online_work() -> None:
    """A batch request that has slots and blocks waits as long as online requests do."""
    driver = driver_with(PRESETS["mixed"], max_num_seqs=2)
    for name in ("running", "also", "waiting"):
        driver.offer(fakes.make_request(name, salt=name.encode(), max_tokens=6))
    driver.offer(fakes.make_request("batch", salt=b"batch", band=Band.BATCH, max_tokens=2))
    driver.run()
    assert facts_of(driver, "waiting").waits_s.keys() == {WaitCause.SLOTS}
    waits_s = facts_of(driver, "batch").waits_s
    assert waits_s[WaitCause.BATCH] >= facts_of(driver, "waiting").waits_s[WaitCause.SLOTS]


def test_work_that_is_moved_out_of_the_batch_band_goes_on_waiting_by_other_causes() -> None:
    """Until it is moved, batch work waits for online work; from then on for what all wait for."""
    driver = driver_with(PRESETS["mixed"], max_num_seqs=1)
    driver.offer(fakes.make_request("running", salt=b"1", max_tokens=9))
    driver.offer(fakes.make_request("waiting", salt=b"2", max_tokens=1))
    driver.offer(fakes.make_request("batch", salt=b"3", band=Band.BATCH))
    for _ in range(3):
        driver.turn()
    lifecycle = driver.scheduler._lifecycle
    sequence = lifecycle.find("batch")
    assert sequence is not None
    lifecycle._promote(sequence, Band.DUE, driver.now)
    driver.run()
    assert facts_of(driver, "batch").waits_s == {WaitCause.BATCH: 3.0, WaitCause.SLOTS: 7.0}


def test_online_work_does_not_wait_for_what_keeps_batch_work_out() -> None:
    """Where the head of the queue is batch work, who comes online waits for the step alone."""
    driver = driver_with(PRESETS["mixed"])
    driver.offer(fakes.make_request("first", salt=b"1"))
    driver.offer(fakes.make_request("batch", salt=b"2", band=Band.BATCH))
    driver.turn()
    driver.scheduler.offer(fakes.make_request("online", salt=b"3"), 0.25)
    driver.run()
    assert facts_of(driver, "online").waits_s == {WaitCause.STEP: 0.75}


def test_where_rows_take_all_tokens_it_waits_for_them() -> None:
    """With slots and blocks free, and a step that has only as many tokens as rows, it waits."""
    config = first_come()
    config = replace(config, composer=replace(config.composer, max_num_batched_tokens=2))
    driver = driver_with(config)
    driver.offer(fakes.make_request("a", prompt=[1], max_tokens=5, salt=b"1"))
    driver.offer(fakes.make_request("b", prompt=[1], max_tokens=5, salt=b"2"))
    driver.turn()
    driver.offer(fakes.make_request("third", prompt=[1], salt=b"3"))
    driver.run()
    assert facts_of(driver, "third").waits_s == {WaitCause.PROMPTS: 4.0}


def test_a_slot_that_nobody_waited_for_is_not_waited_for_before_it_is_looked_for() -> None:
    """Who comes while the last slot is taken, and finds it free at the next plan, waited a step."""
    driver = Driver(fakes.make_engine(max_num_seqs=1))
    driver.offer(fakes.make_request("first", max_tokens=1))
    driver.turn()
    driver.scheduler.offer(fakes.make_request("second"), 0.25)
    driver.run()
    assert facts_of(driver, "second").waits_s == {WaitCause.STEP: 0.75}


def test_an_idle_time_before_is_no_wait() -> None:
    """Who comes after an hour in which nothing was done waits for the next plan alone."""
    config = first_come()
    config = replace(config, composer=replace(config.composer, admission_interval_steps=4))
    driver = driver_with(config)
    driver.offer(fakes.make_request("first"))
    driver.run()
    driver.now = 3600.5
    driver.scheduler.offer(fakes.make_request("second"), 3600.0)
    driver.run()
    assert facts_of(driver, "second").waits_s == {WaitCause.STEP: 0.5}


def test_who_is_cancelled_in_the_queue_waited_to_its_end() -> None:
    """What never had a slot has waits up to its end and nothing after."""
    driver = Driver(fakes.make_engine(max_num_seqs=1))
    driver.offer(fakes.make_request("first", max_tokens=9))
    driver.offer(fakes.make_request("second"))
    driver.turn()
    driver.turn()
    output = driver.scheduler.cancel("second", 2.5)
    assert output is not None
    driver.take([output])
    facts = facts_of(driver, "second")
    assert (facts.waits_s, facts.ended_s) == ({WaitCause.SLOTS: 2.5}, 2.5)
    assert (facts.admitted_s, facts.first_token_s, facts.num_chunks) == (None, None, 0)


def test_who_expires_waited_for_what_was_lacking() -> None:
    """A request that is dropped for its time says what it waited for."""
    driver = driver_with(PRESETS["mixed"], max_num_seqs=1)
    driver.offer(fakes.make_request("first", salt=b"1", max_tokens=9))
    driver.offer(fakes.make_request("second", salt=b"2", expires_s=2.0))
    for _ in range(4):
        driver.turn()
    driver.take(driver.scheduler.take_expired())
    assert driver.last["second"].finish_reason is FinishReason.EXPIRED
    assert facts_of(driver, "second").waits_s == {WaitCause.SLOTS: 2.0}


def test_a_row_that_goes_for_blocks_says_when_it_came_back() -> None:
    """Of two that outgrow the cache the younger is sent back, and has no part until it resumes."""
    driver = Driver(fakes.make_engine(num_blocks=6, max_num_seqs=3))
    driver.offer(fakes.make_request("old", prompt=range(4), max_tokens=12, salt=b"1"))
    driver.offer(fakes.make_request("young", prompt=range(5), max_tokens=12, salt=b"2"))
    driver.turn()
    driver.offer(fakes.make_request("third", prompt=range(16), max_tokens=1, salt=b"3"))
    driver.run()
    assert facts_of(driver, "third").waits_s.keys() == {WaitCause.BLOCKS}
    facts = facts_of(driver, "young")
    [sent] = facts.preemptions
    assert sent.cause is PreemptionCause.BLOCKS
    assert sent.resumed_s == facts_of(driver, "old").ended_s
    assert facts.rests_s == {"preempted": sent.resumed_s - sent.at_s}
    assert (facts.num_chunks, facts.num_prefill_steps) == (1, 1)
    assert facts_of(driver, "old").preemptions == ()


def test_a_row_that_goes_for_a_higher_band_says_so() -> None:
    """The only slot goes to the priority band, and back when that has ended."""
    config = replace(
        PRESETS["mixed"], preemption=replace(PRESETS["mixed"].preemption, min_run_steps=1)
    )
    driver = driver_with(config, max_num_seqs=1)
    driver.offer(fakes.make_request("low", salt=b"1", band=Band.FLEX, max_tokens=6))
    driver.turn()
    driver.turn()
    driver.offer(fakes.make_request("high", salt=b"2", band=Band.PRIORITY, max_tokens=3))
    driver.run()
    facts = facts_of(driver, "low")
    assert facts.preemptions == (Preempted(2.0, PreemptionCause.BAND, 5.0),)
    assert facts.rests_s == {"preempted": 3.0}
    assert facts_of(driver, "high").waits_s == {}


def test_a_row_that_goes_for_one_below_its_share_says_so() -> None:
    """Rows of a tenant that fills all slots go for a newcomer of another."""
    config = PRESETS["mixed"]
    config = replace(config, preemption=replace(config.preemption, min_run_steps=1))
    driver = driver_with(config, max_num_seqs=4)
    for number in range(4):
        name = f"flood{number}"
        driver.offer(fakes.make_request(name, salt=name.encode(), tenant_id="flood", max_tokens=9))
    driver.turn()
    driver.turn()
    driver.offer(fakes.make_request("light", salt=b"light", tenant_id="light", max_tokens=2))
    driver.run()
    causes = [p.cause for n in range(4) for p in facts_of(driver, f"flood{n}").preemptions]
    assert causes == [PreemptionCause.SHARE]
    assert facts_of(driver, "light").waits_s == {}


@pytest.mark.parametrize("depth", [1, 2])
def test_a_fault_of_a_step_is_told_by_those_that_begin_again(depth: int) -> None:
    """Where a step finds no memory its rows begin again and say why; nothing of it is a rest."""
    driver = Driver(fakes.make_engine(depth=depth))
    for name in ("a", "b"):
        driver.offer(fakes.make_request(name, salt=name.encode(), max_tokens=6))
    for _ in range(3):
        driver.turn()
    plan = driver.scheduler.plan(driver.now)
    assert plan is not None
    assert driver.lack_memory(plan.step_id)
    driver.run()
    facts = facts_of(driver, "a")
    assert [sent.cause for sent in facts.preemptions] == [PreemptionCause.FAULT]
    assert "shared" not in facts.rests_s


def test_who_ends_with_a_failed_step_was_not_sent_back() -> None:
    """Rows of a step that fails end; only who goes on tells of a preemption."""
    driver = Driver(fakes.make_engine())
    driver.offer(fakes.make_request("doomed", max_tokens=9))
    driver.turn()
    plan = driver.scheduler.plan(driver.now)
    assert plan is not None
    driver.fail(plan.step_id)
    facts = facts_of(driver, "doomed")
    assert (facts.preemptions, facts.num_output_tokens) == ((), 1)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("band", [Band.DEFAULT, Band.BATCH])
def test_a_row_without_a_grant_pauses(depth: int, band: Band) -> None:
    """From its last granted token to the next grant it pauses, and that is not for others."""
    config = PRESETS["mixed"]
    config = replace(config, composer=replace(config.composer, harvest_step_s=99.0))
    driver = driver_with(config, depth=depth)
    driver.offer(fakes.make_request(max_tokens=5, granted_tokens=2, salt=b"1", band=band))
    driver.offer(fakes.make_request("other", max_tokens=12, salt=b"2"))
    while driver.now < 6.0:
        driver.turn()
    driver.scheduler.extend("r", None, 6.0)
    driver.run()
    facts = facts_of(driver)
    assert facts.first_token_s is not None
    assert facts.rests_s == {"paused": 6.0 - facts.first_token_s - 1.0}


def test_a_grant_that_is_refused_ends_the_pause() -> None:
    """Who ends where its grant does has paused until then, whether others ran or not."""
    driver = Driver(fakes.make_engine())
    driver.offer(fakes.make_request(max_tokens=5, granted_tokens=2))
    driver.offer(fakes.make_request("other", max_tokens=4, salt=b"2"))
    driver.run()
    output = driver.scheduler.finish_granted("r", 7.0)
    assert output is not None
    driver.take([output])
    assert facts_of(driver).rests_s == {"paused": 5.0}


def test_a_pause_ends_where_its_row_is_sent_back() -> None:
    """What is sent back while it pauses was paused until then, and preempted from then on."""
    driver = Driver(fakes.make_engine(num_blocks=6, max_num_seqs=3))
    driver.offer(fakes.make_request("old", prompt=range(4), max_tokens=20, salt=b"1"))
    driver.offer(
        fakes.make_request("r", prompt=range(5), max_tokens=8, granted_tokens=2, salt=b"2")
    )
    driver.run()
    driver.scheduler.extend("r", None, driver.now)
    driver.run()
    facts = facts_of(driver)
    [sent] = facts.preemptions
    assert sent.resumed_s is not None
    assert facts.rests_s == {
        "paused": sent.at_s - 2.0,
        "preempted": sent.resumed_s - sent.at_s,
    }


def test_who_sat_out_and_ends_where_its_grant_does_tells_both_apart() -> None:
    """Steps before the pause that it sat out stay those, and the pause counts none of them."""
    contest = Contest(Flood(tenant="a", streams=16), Flood(tenant="b", streams=48, grant=16))
    ended_s = []
    while not (contest.num_rested > 500 and contest._grants):
        contest.turn()
        ended_s.append(contest.now)
    _, request_id, granted = contest._grants.pop()
    last_s = contest.now
    for _ in range(2):
        contest.turn()
    output = contest.scheduler.finish_granted(request_id, contest.now)
    assert output is not None
    facts = output.facts
    assert facts is not None
    assert facts.first_token_s is not None
    num_steps = sum(facts.first_token_s < s <= last_s for s in ended_s)
    num_out = num_steps - (granted - 16) + 1
    assert num_out > 0
    assert facts.rests_s["paused"] == pytest.approx(contest.now - last_s)
    shared_s = (last_s - facts.first_token_s) * num_out / num_steps
    assert facts.rests_s["shared"] == pytest.approx(shared_s)


@pytest.mark.parametrize(("native", "depth"), [(True, 1), (True, 2), (False, 1)])
def test_rows_that_sit_out_say_for_how_long(native: bool, depth: int) -> None:
    """What a row sat out is its part of the steps that came back between its tokens."""
    floods = Flood(tenant="a", streams=16), Flood(tenant="b", streams=48)
    contest = Contest(*floods, depth=depth)
    if not native:
        contest.scheduler._running.kernel = None
    ended_s = {0.0}
    for _ in range(150):
        contest.turn()
        ended_s.add(contest.now)
    assert contest.num_rested > 1000
    for facts in contest.facts:
        assert facts.first_token_s is not None
        num_steps = sum(facts.first_token_s < s <= facts.ended_s for s in ended_s)
        part = (num_steps - facts.num_output_tokens + 1) / num_steps
        shared_s = part * (facts.ended_s - facts.first_token_s)
        assert facts.rests_s.get("shared", 0.0) == pytest.approx(shared_s)
    assert any(facts.rests_s for facts in contest.facts)


def test_a_prompt_that_is_passed_says_in_how_many_steps_it_was() -> None:
    """Of the steps from its slot to its first token a long prompt has as many as it was in."""
    config = PRESETS["mixed"]
    driver = driver_with(config, max_num_seqs=8, max_num_batched_tokens=8)
    driver.offer(fakes.make_request("long", prompt=range(40), tenant_id="a", salt=b"a"))
    driver.turn()
    for number in range(6):
        name = f"short{number}"
        driver.offer(
            fakes.make_request(name, prompt=[number] * 8, tenant_id="b", salt=name.encode())
        )
    driver.run()
    facts = facts_of(driver, "long")
    long_slot = driver.plans[0].slices[0].slot
    own = [p for p in driver.plans if long_slot in [s.slot for s in p.slices]]
    assert facts.num_chunks == len(own)
    assert facts.num_prefill_steps == own[-1].step_id + 1 > len(own)


def test_a_first_token_that_lands_after_its_row_was_sent_back_counts() -> None:
    """A token in flight is the first one though the row has lost its slot by then."""
    driver = Driver(fakes.make_engine(depth=2))
    driver.offer(fakes.make_request(max_tokens=3))
    driver.turn()
    scheduler = driver.scheduler
    sequence = scheduler._lifecycle.find("r")
    assert sequence is not None
    scheduler._running.preempt(sequence, PreemptionCause.BLOCKS)
    scheduler._lifecycle.requeue(sequence, 0.5)
    assert sequence.status is Status.WAITING
    driver.run()
    facts = facts_of(driver)
    assert facts.first_token_s == 1.0
    assert facts.preemptions == (Preempted(0.5, PreemptionCause.BLOCKS, 1.0),)
    assert facts.rests_s == {}
