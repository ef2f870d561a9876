"""Prompts of one tenant are cut for rows of another, as far as little is lost by that."""

from __future__ import annotations

from array import array
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest

import fakes
from engine.contract import SamplingParams
from engine.step_cost import LinearCost, StepCost
from fakes import Driver
from scheduler.config import PRESETS
from scheduler.core import Scheduler
from scheduler.learn.step_model import StepModel
from scheduler.request import Band, Request, Slo
from scheduler.step.prompt_shares import _Tenants
from scheduler.step.water_level import fair_level

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
    driver = make_driver()
    flooded(driver, weight=1.0 / 9.0)
    # 0.96 × 0.2 / 0.21 of such a step is work.
    assert chunks(driver, 10) == pytest.approx([1_067] * 10, abs=40)


@pytest.mark.parametrize("weight", [1.0, 4.0])
def test_tenants_that_are_alike_have_whole_steps(weight: float) -> None:
    """Two that send as much for their weights have rows that wait for each other's prompts.

    Nobody is ahead.
    """
    driver = make_driver()
    offer(driver, "one", 10)
    offer(driver, "other", 10, weight=weight)
    driver.turn()
    for _ in range(20):
        offer(driver, "one", 5_000, 1)
        offer(driver, "other", 5_000, 1, weight=weight)
    assert chunks(driver, 40)[10:] == [ROOM - 2] * 30


def test_a_promise_is_kept_by_other_means() -> None:
    """A row that was promised a pace it has anyway is no reason to cut prompts."""
    assert flooded(make_driver(), slo=Slo(tpot_s=10.0)) == [ROOM - 1] * 10


def test_a_lower_band_holds_no_prompt() -> None:
    """Rows of the flexible band wait for prompts of the default one, beside one of their own."""
    assert flooded(make_driver(), band=Band.FLEX) == [ROOM - 1] * 10
    driver = make_driver()
    offer(driver, "begun", 15_000, 1, band=Band.FLEX)
    driver.turn()
    assert flooded(driver, band=Band.FLEX) == [ROOM - 1] * 10


def test_a_row_that_is_paused_holds_no_prompt() -> None:
    """Nobody's step is cut for a row that has drawn what it was granted, once it came long ago."""
    driver = make_driver()
    offer(driver, "light", 10, granted_tokens=1)
    driver.turn()
    for _ in range(40):
        offer(driver, "flood", 5_000, 1)
    had = chunks(driver, 80)
    assert had[2:60] == pytest.approx([FAIR] * 58, abs=10)
    assert had[70:] == [ROOM] * 10


def test_rows_that_sit_out_are_part_of_what_steps_cost() -> None:
    """Where all rows cost more than the rest of a step, prompts are whole while few rows run."""
    line = replace(LINE, per_decode_token_s=0.00026)
    driver = make_driver(cost=StepCost("line", line, line))
    for _ in range(50):
        offer(driver, "flood", 10)
    for _ in range(3):
        driver.turn()
    had = flooded(driver)
    decodes = [len(plan.decodes) for plan in driver.plans[-10:]]
    assert max(decodes) < 38, "so that those which run cost less"
    assert min(had) > ROOM - 51


def test_who_has_no_prompt_is_held_to_none() -> None:
    """What a tenant of many rows could have of prompts is nobody else's."""
    rows_s = np.array([0.0001, 0.009, 0.0])
    shares = make_driver().scheduler._composer._prompt_shares
    found = _Tenants(
        rows_s=rows_s,
        run_s=rows_s,
        prompts_s=np.array([0.0, 0.0, 0.2]),
        promised_s=np.zeros(3),
        weights=np.ones(3),
        levels=np.array([0.0001, 0.009, 0.009]),
        is_waiting=np.array([True, False, False]),
        num_steps_since=np.array([99, 99, 1]),
    )
    asked_s = np.array([0.0001, 0.009, 0.2])
    level = fair_level(asked_s, np.ones(3), asked_s, 0.01, 0.2)
    assert shares._limit_s(found, 0.0191, 0.2) == pytest.approx(level)


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


def after_one(driver: Driver, num_tokens: int, num_steps: int, **newcomer: Any) -> list[int]:
    """Compute one prompt of a tenant that draws a single token, and then a flood of others."""
    offer(driver, "newcomer", num_tokens, 1, **newcomer)
    driver.turn()
    for _ in range(40):
        offer(driver, "flood", 5_000, 1)
    return chunks(driver, num_steps)


def test_whoever_came_lately_will_come_again() -> None:
    """One prompt of ten tokens keeps the steps of a flood short for 64 steps, if nobody runs."""
    had = after_one(make_driver(), 10, 80)
    # A tenant that has had nothing yet is not ahead.
    assert had[2:60] == pytest.approx([FAIR] * 58, abs=10)
    assert had[66:] == [ROOM] * 14


def test_who_was_promised_something_or_is_below_shortens_no_step() -> None:
    """A first token that is promised is in time by other means; a lower band waits."""
    assert after_one(make_driver(), 10, 20, slo=Slo(ttft_s=10.0))[2:] == [ROOM] * 18
    assert after_one(make_driver(), 10, 20, band=Band.FLEX)[2:] == [ROOM] * 18


def test_a_promised_prompt_is_not_cut() -> None:
    """Ten of four hundred tokens have whole steps; when they are done the flood has its part."""
    driver = make_driver()
    offer(driver, "light", 10)
    driver.turn()
    for _ in range(10):
        offer(driver, "flood", 5_000, 1)
        offer(driver, "quick", 400, 1, slo=Slo(ttft_s=60.0))
    chunks(driver, 2)
    had = chunks(driver)
    assert had[:2] == [ROOM - 1] * 2
    assert had[2:] == pytest.approx([FAIR] * 10, abs=10)


def test_who_sends_much_is_helped_by_whole_steps() -> None:
    """A tenant with an eighth of what the flood has needs the machine and no short steps."""
    assert after_one(make_driver(), 1_500, 6)[1:] == [ROOM] * 5


def test_all_that_wait_of_a_tenant_count_with_its_next_prompt() -> None:
    """Eight prompts of a tenant that is behind have whole steps together, not cut for each."""
    driver = make_driver()
    flooded(driver)
    for _ in range(8):
        offer(driver, "seldom", 250)
    assert max(chunks(driver, 3)) == ROOM - 1


def test_prompts_that_cost_nothing_are_whole() -> None:
    """Where a step takes as long whatever is in it, nobody waits for prompts."""
    flat = LinearCost(0.01, 0.0)
    assert flooded(make_driver(cost=StepCost("flat", flat, flat))) == [ROOM - 1] * 10
    assert after_one(make_driver(cost=StepCost("flat", flat, flat)), 10, 20)[2:] == [ROOM] * 18


def test_where_rows_are_what_steps_cost_prompts_are_whole() -> None:
    """A row that costs less than the rest of its step cuts prompts, and a dearer one does not."""
    for per_row_s, is_cut in ((0.0099, True), (0.0101, False)):
        line = replace(LINE, per_decode_token_s=per_row_s)
        driver = make_driver(cost=StepCost("line", line, line))
        offer(driver, "light", 10)
        for _ in range(100):
            offer(driver, "flood", 5_000, 1)
        assert (chunks(driver, 120)[-1] < ROOM - 1) == is_cut


def test_what_is_left_of_a_part_is_kept_for_the_next_prompt() -> None:
    """After two steps without a prompt it has three parts, and after forty four."""
    line = replace(LINE, per_prefill_token_s=0.001)
    driver = make_driver(cost=StepCost("line", line, line))
    offer(driver, "light", 10)
    driver.turn()
    # Who has had nothing yet is not ahead.
    offer(driver, "other", 500, 1)
    for num_without, parts in ((40, 4), (2, 3)):
        while chunks(driver, 1) != [0]:
            pass
        chunks(driver, num_without - 1)
        offer(driver, "other", 1_800, 1)
        assert chunks(driver, 2) == pytest.approx([parts * 39, 39], rel=0.05)


def test_who_is_between_two_others_is_not_held_for_the_least() -> None:
    """A tenant with a third of what the flood has computes its prompts whole beside one row."""
    driver = make_driver()
    offer(driver, "light", 10)
    driver.turn()
    for _ in range(30):
        offer(driver, "flood", 5_000, 1)
    had = chunks(driver, 60)
    assert max(had[10:]) < 2 * FAIR
    offer(driver, "middle", 1_500, 1)
    assert max(chunks(driver, 2)) == pytest.approx(1_500 + FAIR, abs=20)
    chunks(driver, 10)
    offer(driver, "middle", 1_500, 1)
    assert max(chunks(driver, 2)) == pytest.approx(1_500 + FAIR, abs=20)
