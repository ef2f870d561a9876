"""Requests that share a prompt: one computes it, and nobody waits for ever."""

from __future__ import annotations

from dataclasses import replace

import pytest

import fakes
from engine.scored import ScoredPrompt
from engine.simulated import SimulatedEngine
from fakes import Driver
from scheduler.config import PRESETS
from scheduler.core import Scheduler
from scheduler.request import Admit, Band, FinishReason, Reject, Request
from scheduler.step.shared_prefix import Shared, SharedPrefix
from waiting import make_sequence

BLOCK_SIZE = 16


def make_engine(**changes: int) -> SimulatedEngine:
    sizes = {
        "max_model_len": 400,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "num_blocks": 100,
        "block_size": BLOCK_SIZE,
        **changes,
    }
    return fakes.make_engine(**sizes)


def member(
    index: int,
    *,
    num_prompt_tokens: int = 200,
    salt: bytes = b"acme",
    arrival_s: float = 0.0,
) -> Request:
    """Make one of several requests for the same prompt."""
    return fakes.make_request(
        f"r{index}",
        prompt=[i % 50 for i in range(num_prompt_tokens)],
        max_tokens=6,
        seed=index,
        salt=salt,
        arrival_s=arrival_s,
    )


def prefilled(driver: Driver) -> int:
    """Count the tokens that slices computed."""
    return sum(chunk.n_tokens for plan in driver.plans for chunk in plan.slices)


def check_all_ended(driver: Driver, requests: list[Request]) -> None:
    for request in requests:
        tokens, reason = fakes.expected_tokens(request, driver.engine.info)
        assert driver.tokens[request.request_id] == tokens
        assert driver.last[request.request_id].finish_reason is reason
    snapshot = driver.scheduler.snapshot()
    assert (snapshot.queued, snapshot.running) == (0, 0)
    assert snapshot.free_blocks == snapshot.total_blocks


@pytest.mark.parametrize("depth", [1, 2])
def test_a_shared_prompt_is_computed_once(depth: int) -> None:
    """Four requests for one prompt of 200 tokens compute its 12 full blocks once, not 4 times."""
    driver = Driver(make_engine(depth=depth))
    requests = [member(i) for i in range(4)]
    for i, request in enumerate(requests):
        assert driver.offer(request) == Admit(i)
    driver.run()
    assert prefilled(driver) == 200 + 3 * (200 - 12 * BLOCK_SIZE)
    assert [driver.last[f"r{i}"].num_cached_tokens for i in range(4)] == [0, 192, 192, 192]
    check_all_ended(driver, requests)


def test_held_requests_block_nobody() -> None:
    """A request that comes after a group's followers is computed before they may start."""
    driver = Driver(make_engine(max_num_batched_tokens=60))
    group = [member(i) for i in range(4)]
    other = fakes.make_request("other", prompt=[40] * 3, max_tokens=1)
    for request in (*group, other):
        driver.offer(request)
    driver.run()
    starts = [new.request_id for plan in driver.plans for new in plan.admitted]
    assert starts == ["r0", "other", "r1", "r2", "r3"]
    assert driver.scheduler.snapshot().num_cached_tokens == 3 * 192


def test_followers_keep_their_place_in_the_queue() -> None:
    """Once let go, followers stand where they arrived, before whoever came later."""
    driver = Driver(make_engine(max_num_seqs=1))
    group = [member(i, arrival_s=i) for i in range(3)]
    late = fakes.make_request("late", prompt=[40] * 3, arrival_s=9.0)
    for request in (*group, late):
        driver.offer(request)
    driver.run()
    starts = [new.request_id for plan in driver.plans for new in plan.admitted]
    assert starts == ["r0", "r1", "r2", "late"]


@pytest.mark.parametrize("when", ["queued", "prefilling"])
def test_leader_that_leaves_hands_over(when: str) -> None:
    """If the leader is cancelled before its prompt is computed, the next one leads."""
    driver = Driver(make_engine())
    requests = [member(i) for i in range(4)]
    for request in requests:
        driver.offer(request)
    if when == "prefilling":
        driver.turn()
    output = driver.scheduler.cancel("r0", driver.now)
    assert output is not None
    assert output.finish_reason is FinishReason.CANCELLED
    driver.run()
    # What the first leader published before it left is found.
    already = driver.last["r1"].num_cached_tokens
    assert [driver.last[f"r{i}"].num_cached_tokens for i in (2, 3)] == [192, 192]
    spent = 64 if when == "prefilling" else 0
    assert prefilled(driver) == spent + 200 - already + 2 * 8
    check_all_ended(driver, requests[1:])


def test_a_follower_may_leave_while_it_is_held() -> None:
    """A cancelled follower is gone at once; leader and other followers go on."""
    driver = Driver(make_engine())
    requests = [member(i) for i in range(3)]
    for request in requests:
        driver.offer(request)
    driver.turn()
    assert driver.scheduler.cancel("r1", driver.now) is not None
    assert driver.scheduler.snapshot().queued == 1
    driver.run()
    check_all_ended(driver, [requests[0], requests[2]])


def test_a_failed_step_of_the_leader_lets_the_next_lead() -> None:
    """A fault that ends the leader leaves nobody held for ever."""
    driver = Driver(make_engine())
    requests = [member(i) for i in range(3)]
    for request in requests:
        driver.offer(request)
    plan = driver.scheduler.plan(driver.now)
    assert plan is not None
    driver.fail(plan.step_id)
    assert driver.last["r0"].finish_reason is FinishReason.ERROR
    driver.run()
    check_all_ended(driver, requests[1:])
    assert driver.last["r2"].num_cached_tokens == 192


def test_a_fault_elsewhere_keeps_followers_held() -> None:
    """When a step without the leader fails, its prompt is computed again, but once."""
    driver = Driver(make_engine(max_num_batched_tokens=64, depth=2))
    driver.offer(fakes.make_request("other", prompt=[40] * 64, max_tokens=1))
    for i in range(3):
        driver.offer(member(i, arrival_s=1.0))
    first, second = driver.scheduler.plan(0), driver.scheduler.plan(0)
    assert first is not None
    assert second is not None
    assert [new.request_id for new in second.admitted] == ["r0"]
    driver.fail(first.step_id)
    assert driver.last["other"].finish_reason is FinishReason.ERROR
    driver.run()
    assert [driver.last[f"r{i}"].num_cached_tokens for i in range(3)] == [0, 192, 192]
    check_all_ended(driver, [member(i) for i in range(3)])


def test_a_grant_does_not_let_a_follower_go() -> None:
    """Raising the grant of a held request leaves it held until the prompt is computed."""
    driver = Driver(make_engine())
    requests = [replace(member(i), granted_tokens=2) for i in range(2)]
    for request in requests:
        driver.offer(request)
    driver.turn()
    for request in requests:
        driver.scheduler.extend(request.request_id, None, driver.now)
    driver.run()
    assert prefilled(driver) == 200 + 8
    check_all_ended(driver, requests)


def test_reset_ends_those_who_are_held() -> None:
    """When everything ends, so do the followers that no queue knows."""
    driver = Driver(make_engine())
    for i in range(3):
        driver.offer(member(i))
    driver.turn()
    outputs = driver.scheduler.reset("the end", driver.now)
    assert {output.request_id for output in outputs} == {"r0", "r1", "r2"}
    assert {output.finish_reason for output in outputs} == {FinishReason.ERROR}
    assert driver.scheduler.plan(driver.now) is None


def test_nobody_is_held_where_that_saves_no_work() -> None:
    """Followers are held; without a cache, with one block or different salts nobody is."""
    cases = [
        (True, [member(0), member(1)], 1),
        (False, [member(0), member(1)], 2),
        (True, [member(i, num_prompt_tokens=BLOCK_SIZE) for i in range(2)], 2),
        (True, [member(0), member(1, salt=b"globex")], 2),
    ]
    for prefix_caching, requests, num_started in cases:
        engine = make_engine(max_num_batched_tokens=500)
        driver = Driver(engine, prefix_caching=prefix_caching)
        for request in requests:
            driver.offer(request)
        driver.turn()
        assert len(driver.plans[0].admitted) == num_started


def test_a_late_member_finds_the_blocks() -> None:
    """A request that joins after the prompt was computed starts at once, from the cache."""
    driver = Driver(make_engine())
    requests = [member(i) for i in range(3)]
    driver.offer(requests[0])
    driver.run()
    driver.offer(requests[1])
    driver.offer(requests[2])
    driver.run()
    assert prefilled(driver) == 200 + 2 * 8
    check_all_ended(driver, requests)


def test_held_requests_count_as_queued() -> None:
    """The bound on the queue holds for held requests too."""
    driver = Driver(make_engine(), max_num_queued=3)
    answers = [driver.offer(member(i)) for i in range(5)]
    assert [isinstance(answer, Reject) for answer in answers] == [False] * 3 + [True] * 2
    assert driver.scheduler.snapshot().queued == 3


def test_nobody_waits_for_a_prompt_of_a_lower_band() -> None:
    """Where online work fills the steps, batch work gets on no more, and others of its prompt do.

    They wait for the one of them that computes it again.
    """
    driver = Driver(make_engine(max_num_seqs=16, num_blocks=400))
    driver.scheduler = Scheduler(driver.engine.info, PRESETS["mixed"])
    driver.offer(replace(member(0), band=Band.BATCH))
    driver.turn()
    for number in range(40):
        prompt = [number] * 60
        driver.offer(fakes.make_request(f"on{number}", tenant_id="on", prompt=prompt))
    driver.offer(member(1))
    driver.offer(member(2))
    while "r2" not in driver.last:
        assert driver.turn()
    assert driver.last["r2"].num_cached_tokens == 192
    assert driver.scheduler.snapshot().queued
    assert "r0" not in driver.last


@pytest.mark.parametrize("how", ["computed", "cancelled"])
def test_who_was_led_no_more_ends_after_who_took_over(how: str) -> None:
    """A prompt that another of a higher band computes as well goes on to its own end."""
    driver = Driver(make_engine(max_num_seqs=16, num_blocks=400))
    driver.scheduler = Scheduler(driver.engine.info, PRESETS["mixed"])
    batch = replace(member(0), band=Band.BATCH)
    driver.offer(batch)
    driver.turn()
    for number in range(40):
        prompt = [number] * 60
        driver.offer(fakes.make_request(f"on{number}", tenant_id="on", prompt=prompt))
    driver.offer(member(1))
    while "r1" not in driver.last:
        assert driver.turn()
    assert "r0" not in driver.last
    if how == "cancelled":
        assert driver.scheduler.cancel("r0", driver.now) is not None
    driver.run()
    check_all_ended(driver, [member(1)] if how == "cancelled" else [batch, member(1)])


def test_who_took_over_leads_once_the_first_has_gone() -> None:
    """A prompt that was begun in the batch band and then above it is not computed once more."""
    shared_prefix = SharedPrefix(4)
    first, second, third = (
        make_sequence(40, band=band) for band in (Band.BATCH, Band.DEFAULT, Band.DEFAULT)
    )
    for sequence in (first, second, third):
        sequence.table.name_blocks(sequence.token_ids)
    shared_prefix.start(first, 0)
    shared_prefix.start(second, 0)
    shared_prefix.leave(first)
    assert shared_prefix.find(third, 0) == (second, 9)
    shared_prefix.leave(second)
    assert shared_prefix.find(third, 0) is None


def test_who_has_its_prompt_scored_waits_for_nobody() -> None:
    """It has to compute all of it, whatever of it another has computed meanwhile."""
    shared_prefix = SharedPrefix(4)
    leader, scored = make_sequence(40), make_sequence(40)
    for sequence in (leader, scored):
        sequence.table.name_blocks(sequence.token_ids)
    shared_prefix.start(leader, 0)
    assert shared_prefix.find(scored, 0) is not None
    scored.prompt_logprobs = ScoredPrompt()
    assert shared_prefix.find(scored, 0) is None


def test_a_step_holds_and_lets_go_a_few() -> None:
    """Of a hundred that share a prompt a step takes out 16, and as many may wait again after it."""
    engine = make_engine(max_num_seqs=64, num_blocks=2000, max_num_batched_tokens=220, depth=2)
    driver = Driver(engine)
    requests = [member(i) for i in range(100)]
    for request in requests:
        driver.offer(request)
    prefix = driver.scheduler._lifecycle._shared_prefix
    num_held = []
    for _ in range(2):
        plan = driver.scheduler.plan(driver.now)
        assert plan is not None
        driver.handles.append(engine.launch(plan))
        num_held.append(prefix.num_held)
    driver.collect()
    num_held.append(prefix.num_held)
    driver.turn()
    num_held.append(prefix.num_held)
    assert num_held == [16, 32, 32, 16]
    driver.run()
    check_all_ended(driver, requests)


def test_others_begin_where_a_step_has_held_enough() -> None:
    """Who comes after a hundred with one prompt waits for none of them to be held."""
    engine = make_engine(max_num_seqs=64, num_blocks=2000, max_num_batched_tokens=400)
    driver = Driver(engine)
    driver.scheduler = Scheduler(engine.info, PRESETS["mixed"])

    def offer_other(name: str, num_tokens: int) -> None:
        prompt, salt = [40] * num_tokens, name.encode()
        driver.offer(
            fakes.make_request(name, tenant_id="other", prompt=prompt, salt=salt, max_tokens=50)
        )

    for i in range(100):
        driver.offer(replace(member(i), tenant_id="many", weight=8.0))
    offer_other("served", 100)
    offer_other("behind", 3)
    driver.turn()
    assert [new.request_id for new in driver.plans[-1].admitted] == ["r0", "served", "behind"]


def test_who_waits_goes_with_the_last_block_that_it_waits_for() -> None:
    """Neither earlier nor later, and not at all once it has left."""
    shared_prefix = SharedPrefix(4)
    leader, waits, leaves, later = (make_sequence(40) for _ in range(4))
    for sequence in (leader, waits, leaves, later):
        sequence.table.name_blocks(sequence.token_ids)
    shared_prefix.start(leader, 0)
    for sequence, num_blocks in ((waits, 5), (leaves, 5), (later, 6)):
        assert shared_prefix.hold(sequence, Shared(leader, num_blocks))
    shared_prefix.leave(leaves)
    shared_prefix.release(leader, 4)
    assert list(shared_prefix.begin_step()) == []
    shared_prefix.release(leader, 5)
    assert list(shared_prefix.begin_step()) == [waits]
    shared_prefix.leave(leader)
    assert list(shared_prefix.begin_step()) == [later]
    assert shared_prefix.num_held == 0
