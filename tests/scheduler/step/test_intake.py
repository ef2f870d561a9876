"""Who of those that wait may be given a slot."""

from __future__ import annotations

from dataclasses import replace

import pytest

import fakes
from engine.step_cost import LinearCost, StepCost
from fakes import Driver
from scheduler.config import PRESETS, FairnessConfig, SchedulerConfig
from scheduler.core import Scheduler
from scheduler.learn import StepModel
from scheduler.policies.registry import policy_names
from scheduler.request import Band


def test_batch_work_leaves_slots_for_who_comes() -> None:
    """Of eight slots it takes six where a quarter is kept, though nobody else is there."""
    driver = Driver(fakes.make_engine(num_blocks=400, max_num_seqs=8, max_num_batched_tokens=256))
    mixed = PRESETS["mixed"]
    config = replace(mixed, composer=replace(mixed.composer, batch_kv_headroom=0.25))
    line = LinearCost(intercept_s=0.001, per_token_s=0.0)
    model = StepModel(StepCost("flat", line, line))
    driver.scheduler = Scheduler(driver.engine.info, config, step_model=model)
    for number in range(12):
        driver.offer(
            fakes.make_request(f"b{number}", max_tokens=40, band=Band.BATCH, ignore_eos=True)
        )
    most = max(driver.scheduler.snapshot().running for _ in range(6) if driver.turn())
    assert most == 6


@pytest.mark.parametrize("policy", policy_names())
def test_batch_work_that_has_waited_long_keeps_nobody_out(policy: str) -> None:
    """Whatever the order is, who comes begins at once where there is room."""
    driver = Driver(fakes.make_engine(max_num_seqs=2))
    fairness = FairnessConfig(policy=policy)
    driver.scheduler = Scheduler(driver.engine.info, SchedulerConfig(fairness=fairness))
    for number in range(4):
        driver.offer(fakes.make_request(f"d{number}", max_tokens=60, ignore_eos=True))
    driver.offer(fakes.make_request("batch", band=Band.BATCH, arrival_s=-1000.0))
    driver.turn()
    for number in range(4):
        driver.scheduler.cancel(f"d{number}", driver.now)
    driver.offer(fakes.make_request("new", arrival_s=driver.now, max_tokens=1))
    driver.turn()
    assert driver.last["new"].finish_reason is not None


@pytest.mark.parametrize("band", [Band.PRIORITY, Band.DEFAULT])
def test_those_who_are_to_be_held_keep_no_other_band_out(band: Band) -> None:
    """While a step holds some of hundreds that share a prompt, who is below them begins."""
    driver = Driver(fakes.make_engine(max_num_seqs=8, num_blocks=400, max_num_batched_tokens=32))
    driver.scheduler = Scheduler(driver.engine.info, PRESETS["mixed"])
    for number in range(200):
        driver.offer(fakes.make_request(f"r{number}", prompt=[1] * 48, band=band))
    driver.turn()
    asked = fakes.make_request("below", tenant_id="globex", salt=b"globex", band=Band.FLEX)
    driver.offer(asked)
    for _ in range(3):
        driver.turn()
    assert driver.tokens["below"]


def test_the_highest_band_passes_a_lower_one_that_does_not_fit() -> None:
    """Beside one that is next for its band's share, and lacks blocks, an urgent one begins."""
    driver = Driver(
        fakes.make_engine(
            block_size=8,
            num_blocks=64,
            max_num_seqs=16,
            max_model_len=600,
            max_num_batched_tokens=64,
        )
    )
    driver.scheduler = Scheduler(driver.engine.info, PRESETS["mixed"])

    def offer(name: str, band: Band, *, num_tokens: int = 56) -> None:
        driver.offer(
            fakes.make_request(
                name,
                prompt=[1] * num_tokens,
                max_tokens=8,
                tenant_id=name[0],
                salt=name.encode(),
                band=band,
                ignore_eos=True,
            )
        )

    number = 0
    for turn in range(4_000):
        while driver.scheduler.snapshot().queued < 6:
            number += 1
            offer(f"default{number}", Band.DEFAULT)
        if turn == 20:
            offer("flex", Band.FLEX, num_tokens=480)
        driver.turn()
        head = driver.scheduler._lifecycle.waiting.peek(driver.now)
        if head is not None and head.request_id == "flex":
            break
    assert driver.scheduler.snapshot().queued > 1, "it goes first for what its band is owed"
    driver.turn()
    assert not driver.plans[-1].admitted
    offer("urgent", Band.PRIORITY)
    driver.turn()
    assert [new.request_id for new in driver.plans[-1].admitted] == ["urgent"]


def test_who_is_passed_lets_in_nobody_whose_token_is_in_flight() -> None:
    """A row that was sent back, and fits again at once, goes on once what it drew has landed."""
    driver = Driver(
        fakes.make_engine(
            block_size=8, num_blocks=41, max_num_seqs=16, max_num_batched_tokens=512,
            max_model_len=200, depth=2,
        )
    )  # fmt: skip
    mixed = PRESETS["mixed"]
    config = replace(
        mixed,
        composer=replace(mixed.composer, kv_reserve="prompt", max_bypasses=2),
        preemption=replace(mixed.preemption, min_run_steps=1),
        prefix_caching=False,
    )
    driver.scheduler = Scheduler(driver.engine.info, config)
    requests = []

    def offer(name: str, num_tokens: int, band: Band, *, weight: float = 1.0) -> None:
        requests.append(
            fakes.make_request(
                name, prompt=[1] * num_tokens, tenant_id=name, band=band, max_tokens=20,
                weight=weight,
            )
        )  # fmt: skip
        driver.offer(requests[-1])

    # Three blocks of a tenant that is far ahead, and seven times five.
    offer("ahead", 18, Band.FLEX, weight=0.01)
    driver.turn()
    for number in range(7):
        offer(f"low{number}", 34, Band.FLEX)
    for _ in range(3):
        driver.turn()
    assert driver.scheduler.snapshot().free_blocks == 3
    offer("large", 160, Band.FLEX)
    offer("high", 47, Band.DEFAULT)
    driver.turn()
    plan = driver.plans[-1]
    assert plan.preempted == ["ahead", "low6"]
    assert [new.request_id for new in plan.admitted] == ["high"]
    driver.turn()
    assert [new.request_id for new in driver.plans[-1].admitted] == ["ahead"]
    driver.run()
    for request in requests:
        tokens, _ = fakes.expected_tokens(request, driver.engine.info)
        assert driver.tokens[request.request_id] == tokens
