"""Prompts of one tenant are cut for rows of another, as far as little is lost by that."""

from __future__ import annotations

from array import array
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

import fakes
from engine.contract import SamplingParams
from engine.step_cost import LinearCost, StepCost
from fakes import Driver
from scheduler.config import PRESETS
from scheduler.core import Scheduler
from scheduler.learn.step_model import StepModel
from scheduler.request import Band, Request, Slo

# A hundred tokens of a prompt take as long as any step does by itself.
LINE = LinearCost(
    intercept_s=0.01, per_token_s=0.0, per_prefill_token_s=0.0001, per_decode_token_s=0.0001
)
COST = StepCost("line", LINE, LINE)
ROOM = 2_000
# Of what such a step works, 0.2 of 0.21 s, four fifths: 0.032 of 0.042 s.
FAIR = 320
_numbers = count(1)


def make_driver(
    *, levels: bool = True, loss: float = 0.2, min_chunk: int = 16, cost: StepCost = COST
) -> Driver:
    """Drive the default preset with steps of two thousand tokens."""
    engine = fakes.make_engine(
        cost=cost, block_size=16, max_num_batched_tokens=ROOM, num_blocks=20_000,
        max_model_len=20_000, max_num_seqs=64,
    )  # fmt: skip
    driver = Driver(engine)
    mixed = PRESETS["mixed"]
    fairness = replace(mixed.fairness, levels_prompts=levels, max_throughput_loss=loss)
    composer = replace(mixed.composer, min_chunk_tokens=min_chunk, max_overhead_share=None)
    admission = replace(mixed.admission, predict_ttft=False)
    config = replace(
        mixed, fairness=fairness, composer=composer, admission=admission, prefix_caching=False
    )
    driver.scheduler = Scheduler(engine.info, config, step_model=StepModel(cost, margin=1.0))
    return driver


def offer(driver: Driver, tenant: str, num_tokens: int, num_drawn: int = 400, **more: Any) -> None:
    number = next(_numbers)
    driver.offer(
        Request(
            request_id=f"{tenant}-{number}",
            tenant_id=tenant,
            key_id=tenant,
            prompt_token_ids=array("i", [number] * num_tokens),
            params=SamplingParams(max_tokens=num_drawn, ignore_eos=True),
            cache_salt=tenant.encode(),
            arrival_s=driver.now,
            **more,
        )
    )


def chunks(driver: Driver, num_steps: int = 12) -> list[int]:
    """Compute some steps; return how many prompt tokens each of them had."""
    before = len(driver.plans)
    for _ in range(num_steps):
        driver.turn()
    return [sum(one.n_tokens for one in plan.slices) for plan in driver.plans[before:]]


def flooded(driver: Driver, **light: Any) -> list[int]:
    """Have one row decode beside a flood of prompts; return what each step has of these."""
    offer(driver, "light", 10, **light)
    driver.turn()
    for _ in range(10):
        offer(driver, "flood", 5_000, 1)
    return chunks(driver)[2:]


def test_prompts_are_cut_to_what_little_is_lost_by() -> None:
    """One row beside endless prompts: steps are a sixth as long, and four fifths of them work."""
    assert flooded(make_driver()) == pytest.approx([FAIR] * 10, abs=10)


def test_the_bound_is_that_of_rows() -> None:
    """Half of the loss makes steps longer; none, or nobody asking, leaves them whole."""
    longer = flooded(make_driver(loss=0.1))
    assert longer == pytest.approx([600] * 10, abs=20)
    assert flooded(make_driver(loss=0.0)) == [ROOM - 1] * 10
    assert flooded(make_driver(levels=False)) == [ROOM - 1] * 10


def test_nobody_is_cut_for_itself() -> None:
    """A tenant's own rows wait for its own prompts."""
    driver = make_driver()
    offer(driver, "flood", 10)
    driver.turn()
    for _ in range(10):
        offer(driver, "flood", 5_000, 1)
    assert chunks(driver)[2:] == [ROOM - 1] * 10


def test_who_weighs_less_costs_less() -> None:
    """For a tenant of a tenth of all weight a fifth of the bound may be lost."""
    light = flooded(make_driver(), weight=1.0 / 9.0)
    # 0.96 × 0.2 / 0.21 of such a step is work.
    assert light == pytest.approx([1_067] * 10, abs=40)


def test_a_promise_is_kept_by_other_means() -> None:
    """A row that was promised a pace it has anyway is no reason to cut prompts."""
    assert flooded(make_driver(), slo=Slo(tpot_s=10.0)) == [ROOM - 1] * 10


def test_a_lower_band_holds_no_prompt() -> None:
    """Rows of the flexible band wait for prompts of the default one."""
    assert flooded(make_driver(), band=Band.FLEX) == [ROOM - 1] * 10


def test_whose_prompts_come_now_and_then_has_whole_steps() -> None:
    """A prompt beside forty rows of another is computed at once: its tenant is behind."""
    driver = make_driver()
    for _ in range(40):
        offer(driver, "many", 10)
    for _ in range(300):
        driver.turn()
    offer(driver, "seldom", 1_500)
    assert max(chunks(driver, 2)) == 1_500


def test_who_has_rows_too_has_them_of_its_part() -> None:
    """Fifty rows of the flood's take 0.005 s of what its prompts would have."""
    driver = make_driver()
    offer(driver, "light", 10)
    for _ in range(50):
        offer(driver, "flood", 10)
    driver.turn()
    for _ in range(10):
        offer(driver, "flood", 5_000, 1)
    assert chunks(driver)[2:] == pytest.approx([FAIR - 50] * 10, abs=12)


def test_who_is_behind_has_its_prompt_whole_and_the_others_their_part() -> None:
    """A short prompt of a third tenant comes on top of what is fair of the flood's."""
    driver = make_driver()
    flooded(driver)
    offer(driver, "seldom", 500)
    assert max(chunks(driver, 2)) == pytest.approx(500 + FAIR, abs=10)


def test_a_long_prompt_that_rested_has_a_whole_step() -> None:
    """What it is given is weighed with how many steps it sat out, and is not cut besides."""
    line = replace(LINE, per_prefill_context_token_s=1e-5)
    driver = make_driver(cost=StepCost("line", line, line))
    offer(driver, "light", 10)
    driver.turn()
    offer(driver, "flood", 19_000, 1)
    had = chunks(driver, 120)
    assert max(had[60:]) == ROOM - 1
    assert had[60:].count(0) > 30


def test_a_step_has_the_least_chunk_at_least() -> None:
    """However little is fair, a prompt gets on."""
    assert flooded(make_driver(loss=0.9, min_chunk=128)) == pytest.approx([128] * 10, abs=2)
