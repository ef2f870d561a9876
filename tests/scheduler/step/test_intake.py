"""Who of those that wait may be given a slot."""

from __future__ import annotations

from dataclasses import replace

import fakes
from engine.step_cost import LinearCost, StepCost
from fakes import Driver
from scheduler.config import PRESETS
from scheduler.core import Scheduler
from scheduler.learn import StepModel
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
