"""How much of others' prompts a step takes beside one whose first token is promised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

import fakes
from engine.step_cost import LinearCost, StepCost
from fakes import Driver
from scheduler.config import ComposerConfig, SchedulerConfig, first_come
from scheduler.core import Scheduler
from scheduler.learn import StepModel
from scheduler.request import Band, Slo

# A step of n tokens takes 10 ms and n ms more.
_LINE = LinearCost(0.010, 0.001)
_COST = StepCost("line", _LINE, _LINE)
_BASE = first_come(prefix_caching=False)


def _driver(
    max_loss: float = 0.2,
    *,
    margin: float = 1.0,
    cost: StepCost = _COST,
    engine: Mapping[str, int] = MappingProxyType({}),
    **composer: Any,
) -> Driver:
    options: dict[str, Any] = {"dynamic_chunk": True, "max_overhead_share": None, **composer}
    config: SchedulerConfig = replace(
        _BASE,
        composer=replace(ComposerConfig(), **options),
        fairness=replace(_BASE.fairness, max_throughput_loss=max_loss),
    )
    sizes = {"max_num_batched_tokens": 512, "num_blocks": 400, "max_model_len": 1200, **engine}
    driver = Driver(fakes.make_engine(cost=cost, block_size=8, **sizes))
    model = StepModel(cost, margin=margin)
    driver.scheduler = Scheduler(driver.engine.info, config, step_model=model)
    return driver


def _offer(driver: Driver, name: str, num_tokens: int, **changes: Any) -> None:
    changes = {"max_tokens": 30, "ignore_eos": True, **changes}
    driver.offer(fakes.make_request(name, prompt=[1] * num_tokens, **changes))


def _beside_a_promise(
    driver: Driver, ttft_s: float, *, num_tokens: int = 20, **others: Any
) -> list[int]:
    """Return the chunks of the step in which a prompt with a promise is run, and a long one."""
    _offer(driver, "short", num_tokens, slo=Slo(ttft_s=ttft_s))
    _offer(driver, "long", 1_000, **others)
    driver.turn()
    return _chunks(driver)


def _chunks(driver: Driver) -> list[int]:
    return [chunk.n_tokens for chunk in driver.plans[-1].slices]


@pytest.mark.parametrize(
    ("num_tokens", "ttft_s", "others"),
    [
        # 10 ms and 150, and what is left of the promise for others.
        (150, 0.250, 90),
        # All there is room for ends in time.
        (150, 0.600, 362),
        # A full step works for 0.98 of its time; one with 36 ms of work in 46 does a fifth less.
        (20, 0.035, 16),
        # Late whatever the step has besides.
        (20, 0.029, 492),
    ],
)
def test_a_first_token_is_not_late_by_what_others_have_in_its_step(
    num_tokens: int, ttft_s: float, others: int
) -> None:
    """Beside a prompt's last chunk a step takes as much of others' as ends by its promise."""
    chunks = _beside_a_promise(_driver(), ttft_s, num_tokens=num_tokens)
    assert chunks == pytest.approx([num_tokens, others], abs=1)


def test_what_shares_may_cost_is_all_that_it_may_cost() -> None:
    """Where nothing may be lost for others' sake, or steps are to be full, nothing is cut."""
    assert _beside_a_promise(_driver(0.0), 0.25) == [20, 492]
    assert _beside_a_promise(_driver(dynamic_chunk=False), 0.25) == [20, 492]


@pytest.mark.parametrize(
    ("ttft_s", "num_tokens"),
    [
        # Of 0.9 x 400 ms its own step may take 46, the least: two of 156 are before it.
        (0.400, 146),
        # Two would take too long; one of the least does not.
        (0.080, 36),
        # Whoever came would be late beside one of these as well.
        (0.070, 512),
        # Two full ones are no longer than that.
        (1.300, 512),
    ],
)
def test_steps_are_short_for_who_may_come_while_they_run(ttft_s: float, num_tokens: int) -> None:
    """Two are in flight where another would begin, until nobody has come for two seconds."""
    driver = _driver(engine={"depth": 2, "num_blocks": 4_000, "max_model_len": 20_000})
    _offer(driver, "long", 19_000)
    driver.turn()
    assert _chunks(driver) == [512]
    # It may be refused as well, there being two full steps before it.
    _offer(driver, "short", 3, slo=Slo(ttft_s=ttft_s))
    driver.scheduler.cancel("short", driver.now)
    began_s = driver.now
    for _ in range(5):
        driver.turn()
        assert _chunks(driver)[0] == pytest.approx(num_tokens, abs=3)
    while driver.now < began_s + 2.0:
        driver.turn()
    driver.turn()
    driver.turn()
    assert _chunks(driver) == [512]


@pytest.mark.parametrize(
    ("num_prompt_tokens", "long", "short", "num_tokens"),
    [
        (3, Band.DEFAULT, Band.DEFAULT, 146),
        (3, Band.FLEX, Band.DEFAULT, 146),
        # Of batch work as well, which nobody is to wait for either.
        (3, Band.BATCH, Band.DEFAULT, 146),
        # It would wait for those of the higher band, however short steps are.
        (3, Band.PRIORITY, Band.DEFAULT, 512),
        # By itself it takes more than a quarter of its promise.
        (100, Band.DEFAULT, Band.DEFAULT, 512),
    ],
)
def test_steps_are_short_for_short_prompts_that_need_not_wait(
    num_prompt_tokens: int, long: Band, short: Band, num_tokens: int
) -> None:
    """Whose wait is not of one step or two gains nothing by short ones."""
    driver = _driver(
        engine={"depth": 2, "num_blocks": 4_000, "max_model_len": 20_000}, harvest_step_s=9.0
    )
    _offer(driver, "long", 19_000, band=long)
    driver.turn()
    _offer(driver, "short", num_prompt_tokens, slo=Slo(ttft_s=0.4), band=short)
    driver.scheduler.cancel("short", driver.now)
    driver.turn()
    assert _chunks(driver) == pytest.approx([num_tokens], abs=4)


def test_the_tightest_of_many_promises_are_looked_at() -> None:
    """One with more time changes nothing, nor do more promises than are kept."""
    driver = _driver(engine={"depth": 2, "num_blocks": 4_000, "max_model_len": 20_000})
    _offer(driver, "long", 19_000)
    driver.turn()
    for number in range(100):
        _offer(driver, f"short {number}", 3, slo=Slo(ttft_s=0.4 + number / 10))
        driver.scheduler.cancel(f"short {number}", driver.now)
    driver.turn()
    assert _chunks(driver) == pytest.approx([146], abs=4)


def test_prompts_go_on_where_a_token_costs_more_than_a_step() -> None:
    """Sixteen tokens at least, where the promise has time for two."""
    dear = LinearCost(0.001, 0.1)
    driver = _driver(cost=StepCost("dear", dear, dear), engine={"depth": 2})
    _offer(driver, "long", 1_000)
    _offer(driver, "short", 1, slo=Slo(ttft_s=0.81))
    driver.scheduler.cancel("short", driver.now)
    driver.turn()
    assert _chunks(driver) == [16]


def test_the_longest_prompt_of_a_promise_is_reckoned_with() -> None:
    """Among prompts that were promised the same lately; what was before a rest is forgotten."""
    driver = _driver(engine={"depth": 2, "num_blocks": 4_000, "max_model_len": 20_000})
    for name, num_tokens in (("first", 80), ("second", 3)):
        _offer(driver, name, num_tokens, slo=Slo(ttft_s=0.4))
        driver.scheduler.cancel(name, driver.now)
    _offer(driver, "long", 19_000)
    driver.turn()
    # Of 360 ms 10 are a step's and 90 the prompt's.
    assert _chunks(driver) == pytest.approx([120], abs=1)
    driver.scheduler.cancel("long", driver.now)
    driver.run()
    driver.now += 2.1
    _offer(driver, "other", 15_000)
    driver.turn()
    assert _chunks(driver) == [512]
    _offer(driver, "third", 80, slo=Slo(ttft_s=0.4))
    for name in ("third", "other"):
        driver.scheduler.cancel(name, driver.now)
    driver.run()
    driver.now += 2.1
    _offer(driver, "fourth", 3, slo=Slo(ttft_s=0.4))
    driver.scheduler.cancel("fourth", driver.now)
    _offer(driver, "another", 15_000)
    driver.turn()
    assert _chunks(driver) == pytest.approx([146], abs=4)


def test_the_tightest_of_several_promises_holds() -> None:
    """One with more time that comes later in the step gives nothing back."""
    driver = _driver()
    for name, ttft_s in (("tight", 0.1), ("loose", 0.4)):
        _offer(driver, name, 20, slo=Slo(ttft_s=ttft_s))
    assert _beside_a_promise(driver, 0.5) == pytest.approx([20, 20, 20, 30], abs=1)


def test_batch_work_does_not_make_a_first_token_late() -> None:
    """What is taken along ends by the tightest promise as well, and may be nothing."""
    driver = _driver(harvest_step_s=9.0)
    _offer(driver, "tight", 5, slo=Slo(ttft_s=0.05))
    assert _beside_a_promise(driver, 0.06, band=Band.BATCH) == pytest.approx([5, 20, 15], abs=1)
    # In the next step nobody's first token comes: 12 ms of the rows' are a fifth of 60.
    driver.turn()
    assert _chunks(driver) == pytest.approx([48], abs=1)
    assert _beside_a_promise(_driver(harvest_step_s=9.0), 0.0305, band=Band.BATCH) == [20]
    # Nor where prompts are to have no more of the step.
    short = _driver(harvest_step_s=9.0, max_overhead_share=0.5, min_chunk_tokens=20)
    assert _beside_a_promise(short, 0.05, band=Band.BATCH) == pytest.approx([20, 20], abs=1)


def test_a_step_in_flight_leaves_less_time() -> None:
    """A step begins when the one before it is back, and its price is stretched by the margin."""
    driver = _driver(margin=1.25, engine={"depth": 2})
    _offer(driver, "other", 40)
    driver.turn()
    # 50 ms of the other one, times 1.25, leave 270 of 400 ms, and 161 of its own 109 of those.
    chunks = _beside_a_promise(driver, 0.4, num_tokens=150)
    assert chunks == pytest.approx([150, 109], abs=1)
