"""The step model, on steps whose cost is known."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.step_cost import LinearCost, StepCost, StepFeatures, attended_tokens, load_profile
from scheduler.learn.step_model import StepModel

A100, CPU = load_profile("a100-llama-3-8b"), load_profile("cpu-demo")
DECODE_ONLY = StepFeatures(num_decode_tokens=8, decode_context_tokens=800)
DECODES = StepFeatures(num_decode_tokens=20, decode_context_tokens=10_000)
PROMPT = replace(DECODES, num_prefill_tokens=192, prefill_attended_tokens=attended_tokens(0, 192))


def steps(seed: int, count: int) -> Iterator[StepFeatures]:
    """Draw steps as a composer makes them, of both regimes: some only decode, some prefill too."""
    draw = random.Random(seed)
    for _ in range(count):
        num_decode = draw.randint(1, 128)
        num_prefill = draw.choice((0, 0, draw.randint(1, 512), draw.randint(256, 2048)))
        yield StepFeatures(
            num_prefill_tokens=num_prefill,
            num_decode_tokens=num_decode,
            prefill_context_tokens=draw.randint(0, 4000) if num_prefill else 0,
            decode_context_tokens=num_decode * draw.randint(50, 1500),
        )


def teach(
    model: StepModel,
    truth: StepCost,
    *,
    count: int,
    noise: float = 0.1,
    slower: float = 1.0,
    seed: int = 1,
) -> None:
    draw = random.Random(seed)
    for step in steps(seed, count):
        model.observe(step, truth.price_s(step) * slower * draw.lognormvariate(0, noise))


def error_of(model: StepModel, truth: StepCost, *, slower: float = 1.0) -> float:
    """Return the mean relative error on steps that were not observed."""
    errors = [
        abs(model.price_s(step) / (truth.price_s(step) * slower) - 1) for step in steps(99, 500)
    ]
    return sum(errors) / len(errors)


def test_prior_prices_until_something_is_observed() -> None:
    """With a prior the first prices are its own, and it counts as calibrated."""
    model = StepModel(A100)
    assert model.is_calibrated
    assert model.margin == 1.2
    for step in (*steps(3, 200), StepFeatures(num_decode_tokens=600)):
        assert model.price_s(step) == pytest.approx(A100.price_s(step), rel=1e-12)


def test_exact_prior_is_left_alone() -> None:
    """Steps that take what the prior says change nothing, and need no margin."""
    model = StepModel(A100)
    teach(model, A100, count=1000, noise=0.0)
    assert error_of(model, A100) < 1e-9
    assert model.margin == pytest.approx(1.0)


@pytest.mark.parametrize("prior", [None, "cpu-demo", "a100-llama-3-8b"])
def test_both_regimes_are_learned_from_noisy_steps(prior: str | None) -> None:
    """From a guess, a wrong prior or a good one: after 1,000 noisy steps it errs by under 4 %."""
    model = StepModel(None if prior is None else load_profile(prior))
    teach(model, A100, count=1000)
    assert error_of(model, A100) < 0.04


def test_proportions_are_learned_from_few_steps() -> None:
    """A prior of another machine's unit is of use after the first steps already."""
    hundredth = StepModel(A100)
    teach(hundredth, A100, count=8, noise=0.0, slower=100.0)
    assert error_of(hundredth, A100, slower=100.0) < 1e-6


def test_guess_is_slow_and_says_so() -> None:
    """Without a prior the model is not calibrated for 32 steps, and its chunks are small."""
    model = StepModel()
    assert model.price_s(StepFeatures(num_prefill_tokens=512)) > 0.5
    room = model.max_prefill_tokens(DECODE_ONLY, 0.2, context_tokens=0, max_num_tokens=2048)
    assert 64 < room < 256
    teach(model, A100, count=31)
    assert not model.is_calibrated
    teach(model, A100, count=1)
    assert model.is_calibrated


@pytest.mark.parametrize("noise", [0.05, 0.2, 0.4])
def test_margin_covers_the_noise(noise: float) -> None:
    """95 % of later steps stay within price times margin, whatever the spread."""
    model = StepModel(A100)
    teach(model, A100, count=500, noise=noise)
    draw = random.Random(5)
    num_within = 0
    for step in steps(5, 2000):
        step_s = A100.price_s(step) * draw.lognormvariate(0, noise)
        num_within += step_s <= model.margin * model.price_s(step)
        model.observe(step, step_s)
    assert 0.93 < num_within / 2000 < 0.97


def test_margin_is_bounded() -> None:
    """However wild the steps, the margin stays between 1 and 3."""
    wild, early = StepModel(A100), StepModel(A100)
    teach(wild, A100, count=600, noise=2.0)
    assert wild.margin == 3.0
    # Every step takes a tenth of what is expected, and every other one a hundredth.
    for number, step in enumerate(steps(1, 200)):
        early.observe(step, A100.price_s(step) * (0.1 if number % 2 else 0.01))
        assert 1.0 <= early.margin <= 3.0


def test_hiccups_do_not_wreck_the_fit() -> None:
    """One step in fifty takes 2 s; the others are still predicted within 10 %."""
    model = StepModel(A100)
    draw = random.Random(2)
    for number, step in enumerate(steps(2, 1000)):
        hiccup = number % 50 == 0
        model.observe(step, 2.0 if hiccup else A100.price_s(step) * draw.lognormvariate(0, 0.1))
    assert error_of(model, A100) < 0.1
    assert model.margin < 1.4


def test_hiccup_in_the_first_step() -> None:
    """A first step that takes 2 s, as compilation does, does not set the scale."""
    model = StepModel(A100)
    model.observe(DECODE_ONLY, 2.0)
    teach(model, A100, count=50, noise=0.05)
    assert error_of(model, A100) < 0.1


def test_the_first_steps_are_learned_from_as_well() -> None:
    """After the eight that set the scale it is known how far off that is on each of them."""
    model = StepModel(A100)
    for number in range(8):
        model.observe(DECODES, A100.price_s(DECODES) * (1.5 if number % 2 else 1.0))
    assert 0.0 < model.error < 0.05


def test_a_step_that_took_next_to_nothing_is_off_by_ten_at_most() -> None:
    """One that the clock hardly saw does not hide what others are off by."""
    model = StepModel(A100)
    teach(model, A100, count=40, noise=0.0)
    model.observe(DECODES, 1e-9)
    assert model.error == pytest.approx(0.05, rel=0.01)
    assert model.bias == pytest.approx(0.05, rel=0.01)


def test_the_margin_is_kept_by_nineteen_steps_of_twenty() -> None:
    """Of 32 steps one may take longer, and the next longest is what it is."""
    model = StepModel(A100)
    for step_s in (*[A100.price_s(DECODES)] * 30, 1.2 * A100.price_s(DECODES)):
        model.observe(DECODES, step_s)
    model.observe(DECODES, 1.9 * A100.price_s(DECODES))
    assert model.margin == pytest.approx(1.2, abs=0.01)


def test_prompts_are_made_slower_once_for_the_same_steps() -> None:
    """What has been taken for a change of all prompts says nothing of the next ones."""
    model = StepModel(A100)
    before = model._prompts_s(PROMPT)
    for _ in range(16):
        model._note_swing(1.05, 0.1)
    assert model._prompts_s(PROMPT) == pytest.approx(1.5 * before)
    model._note_swing(1.001, 0.1)
    assert model._prompts_s(PROMPT) == pytest.approx(1.5 * before)


def test_sixteen_steps_without_prompts_say_nothing_of_them() -> None:
    """The last one before them may have had a prompt."""
    model = StepModel(CPU)
    for _ in range(600):
        model.observe(DECODES, CPU.price_s(DECODES))
        model.observe(PROMPT, CPU.price_s(PROMPT))
    model.observe(PROMPT, 0.999 * CPU.price_s(PROMPT))
    adds_s = model.price_s(PROMPT) - model.price_s(DECODES)
    for _ in range(16):
        model.observe(DECODES, 1.5 * CPU.price_s(DECODES))
    assert model.price_s(DECODES) > 1.2 * CPU.price_s(DECODES)
    assert model.price_s(PROMPT) - model.price_s(DECODES) == pytest.approx(adds_s, rel=0.05)


def test_a_small_part_of_a_step_is_followed_without_going_too_far() -> None:
    """Short prompts that take five times as long are priced so after fifty, and never above."""
    model = StepModel()
    short = replace(PROMPT, num_prefill_tokens=32, prefill_attended_tokens=attended_tokens(0, 32))
    alone_s = CPU.price_s(DECODES)
    added_s = CPU.price_s(short) - alone_s
    assert added_s < 0.2 * alone_s
    for _ in range(200):
        model.observe(short, alone_s + added_s)
        model.observe(DECODES, alone_s)
    found = []
    for _ in range(50):
        model.observe(short, alone_s + 5.0 * added_s)
        for _ in range(4):
            model.observe(DECODES, alone_s)
        found.append((model.price_s(short) - model.price_s(DECODES)) / added_s)
    assert found[-1] == pytest.approx(5.0, rel=0.1)
    assert max(found) < 5.5


@pytest.mark.parametrize("slower", [0.4, 2.5])
def test_what_prompts_cost_is_followed_between_steps_without(slower: float) -> None:
    """Prompts that take longer than was learned are priced so after forty steps with one."""
    model = StepModel()
    alone_s = CPU.price_s(DECODES)
    added_s = CPU.price_s(PROMPT) - alone_s
    for number in range(400):
        times = 1.0 if number < 200 else slower
        if number < 200 or number % 5 == 0:
            model.observe(PROMPT, alone_s + times * added_s)
        model.observe(DECODES, alone_s)
    assert model.price_s(PROMPT) == pytest.approx(alone_s + slower * added_s, rel=0.1)
    assert model.price_s(DECODES) == pytest.approx(alone_s, rel=0.1)


@pytest.mark.parametrize("slower", [0.3, 2.0, 5.0])
def test_change_of_the_whole_machine_is_followed(slower: float) -> None:
    """A machine that becomes slower or faster is predicted within 10 % after 40 steps."""
    model = StepModel(A100)
    teach(model, A100, count=500)
    teach(model, A100, count=40, slower=slower, seed=7)
    assert error_of(model, A100, slower=slower) < 0.1
    assert model.margin < 1.5


def test_a_flood_after_a_lone_row_is_told_from_its_steps() -> None:
    """Of steps with ten rows, and now and then some with a hundred, it tells what a row costs."""
    model, draw = StepModel(), random.Random(0)
    alone = StepFeatures(num_decode_tokens=1, decode_context_tokens=60)
    for _ in range(300):
        model.observe(alone, draw.uniform(0.9, 1.1) * 1.2e-3)
    for number in range(600):
        num_rows = 10 if number % 64 > 5 else 120
        features = StepFeatures(num_decode_tokens=num_rows, decode_context_tokens=60 * num_rows)
        model.observe(features, draw.uniform(0.8, 1.2) * (2e-3 + 75e-6 * num_rows))
    fixed_s, row_s, context_s = model.decode_costs(120)
    assert fixed_s == pytest.approx(1.5e-3, rel=0.4), "between what it was then and is now"
    assert row_s + 60 * context_s == pytest.approx(75e-6, rel=0.15)


def test_what_is_not_seen_is_not_forgotten() -> None:
    """After 10,000 steps that only decode, a prefill costs what it was learned to cost."""
    truth = StepCost(
        "truth",
        LinearCost(0.01, 0.0, 2e-4, 1e-4, 2e-7, 1e-6),
        LinearCost(0.02, 0.0, 1e-4, 1e-4, 2e-7, 1e-6),
    )
    model = StepModel(A100)
    teach(model, truth, count=1000)
    draw = random.Random(3)
    for _ in range(10_000):
        model.observe(DECODE_ONLY, truth.price_s(DECODE_ONLY) * draw.lognormvariate(0, 0.1))
    assert error_of(model, truth) < 0.05


def test_constant_steps_keep_it_bounded() -> None:
    """Nothing winds up where features never vary: each coefficient stays near the prior's."""
    model = StepModel(A100)
    draw = random.Random(4)
    for _ in range(10_000):
        model.observe(DECODE_ONLY, A100.price_s(DECODE_ONLY) * draw.lognormvariate(0, 0.2))
    assert error_of(model, A100) < 0.2


def test_step_without_a_time_teaches_nothing() -> None:
    """An engine that reports no time leaves the model as it was."""
    model = StepModel(A100)
    for _ in range(100):
        model.observe(DECODE_ONLY, 0.0)
    assert model.price_s(DECODE_ONLY) == pytest.approx(A100.price_s(DECODE_ONLY))
    assert model.margin == 1.2


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2048), st.integers(0, 256), st.integers(0, 8192), st.floats(1e-6, 10.0)
        ),
        min_size=1,
        max_size=60,
    ),
    st.booleans(),
)
def test_nonsense_never_makes_prompt_tokens_cheaper(
    observed: list[tuple[int, int, int, float]], has_prior: bool
) -> None:
    """Whatever is observed, prices are positive or zero and rise with a prompt's tokens."""
    model = StepModel(A100 if has_prior else None)
    for num_prefill, num_decode, context, step_s in observed:
        model.observe(StepFeatures(num_prefill, num_decode, context, context), step_s)
    cost = model.as_cost("learned")
    for line in (cost.small, cost.large):
        assert line.intercept_s >= 0
        assert line.per_prefill_token_s >= 0
        assert line.per_prefill_context_token_s >= 0
        assert line.per_prefill_attended_token_s >= 0
    for low, high in ((1, 512), (513, 4096)):
        prices = [model.price_s(StepFeatures(num_prefill_tokens=n)) for n in (low, high)]
        assert 0 <= prices[0] <= prices[1] < float("inf")


seconds = st.floats(0, 0.05)
lines = st.builds(
    LinearCost,
    intercept_s=seconds,
    per_token_s=st.sampled_from((0.0, 1e-7, 2e-5, 1e-3)),
    per_prefill_token_s=st.sampled_from((0.0, 3e-5)),
    per_decode_token_s=st.sampled_from((0.0, 1e-4)),
    per_decode_context_token_s=st.sampled_from((0.0, 1e-7)),
    per_prefill_context_token_s=st.sampled_from((0.0, 1e-6)),
    per_prefill_attended_token_s=st.sampled_from((0.0, 1e-9, 3e-8)),
)


@given(
    small=lines,
    large=lines,
    split=st.integers(1, 600),
    base=st.builds(
        StepFeatures, st.integers(0, 300), st.integers(0, 300), st.integers(0, 5000), st.just(9000)
    ),
    limit_s=st.one_of(st.floats(-0.1, 0.4), st.just(float("inf"))),
    context_tokens=st.integers(0, 10_000),
    max_num_tokens=st.integers(0, 700),
)
@example(
    small=A100.small,
    large=A100.large,
    split=512,
    base=StepFeatures(0, 32, 0, 32_000),
    limit_s=0.0731,
    context_tokens=0,
    max_num_tokens=2048,
)
# Just one token more than none.
@example(
    small=LinearCost(0.01, 0.001),
    large=LinearCost(0.01, 0.001),
    split=512,
    base=StepFeatures(),
    limit_s=1.2 * 0.0115,
    context_tokens=0,
    max_num_tokens=64,
)
# A published fit in which contexts make steps shorter: none is shorter than without anything.
@example(
    small=LinearCost(0.01, 1e-5, per_decode_context_token_s=-1e-7),
    large=LinearCost(0.01, 1e-5, per_decode_context_token_s=-1e-7),
    split=512,
    base=StepFeatures(0, 32, 0, 900_000),
    limit_s=0.005,
    context_tokens=0,
    max_num_tokens=64,
)
def test_most_tokens_within_a_limit(
    small: LinearCost,
    large: LinearCost,
    split: int,
    base: StepFeatures,
    limit_s: float,
    context_tokens: int,
    max_num_tokens: int,
) -> None:
    """The closed form finds what trying every number finds, in both regimes."""
    model = StepModel(StepCost("c", small, large, split_num_tokens=split))

    def largest(limit_s: float) -> int:
        for num_tokens in range(max_num_tokens, 0, -1):
            step = StepFeatures(
                base.num_prefill_tokens + num_tokens,
                base.num_decode_tokens,
                base.prefill_context_tokens + context_tokens,
                base.decode_context_tokens,
                base.prefill_attended_tokens + attended_tokens(context_tokens, num_tokens),
            )
            if model.margin * model.price_s(step) <= limit_s:
                return num_tokens
        return 0

    found = model.max_prefill_tokens(
        base, limit_s, context_tokens=context_tokens, max_num_tokens=max_num_tokens
    )
    # Both are rounded, each in its own order.
    assert largest(limit_s - 1e-12) <= found <= largest(limit_s + 1e-12)


@given(st.integers(0, 5000), st.integers(1, 700), st.integers(0, 3000), st.integers(0, 400))
def test_prefill_is_the_sum_of_its_chunks(
    num_tokens: int, chunk_tokens: int, context_tokens: int, num_decode: int
) -> None:
    """A prompt takes what its chunks take one after another, as their context grows."""
    model = StepModel(A100)
    total_s, done = 0.0, 0
    while done < num_tokens:
        chunk = min(chunk_tokens, num_tokens - done)
        context = context_tokens + done
        total_s += model.price_s(StepFeatures(chunk, num_decode, context, 100 * num_decode))
        done += chunk
    decodes = StepFeatures(num_decode_tokens=num_decode, decode_context_tokens=100 * num_decode)
    predicted_s = model.prefill_s(
        num_tokens, chunk_tokens=chunk_tokens, decodes=decodes, context_tokens=context_tokens
    )
    assert predicted_s == pytest.approx(total_s, rel=1e-3)


def test_what_a_prompt_attends_to_is_part_of_its_prefill() -> None:
    """A step's price of it grows with what came before, in whole chunks and in the rest."""
    line = LinearCost(0.01, 1e-5, per_prefill_attended_token_s=1e-7)
    model = StepModel(StepCost("attends", line, line))
    total_s = sum(
        model.price_s(StepFeatures(n, prefill_attended_tokens=attended_tokens(start, n)))
        for start, n in ((100, 200), (300, 200), (500, 200), (700, 70))
    )
    predicted_s = model.prefill_s(670, chunk_tokens=200, decodes=StepFeatures(), context_tokens=100)
    assert predicted_s == pytest.approx(total_s)


def test_snapshot_prices_as_the_model_does() -> None:
    """What is learned can be taken out as a cost, and be another model's prior."""
    model = StepModel()
    teach(model, A100, count=300)
    cost = model.as_cost("learned")
    assert cost.name == "learned"
    again = StepModel(cost)
    for step in steps(8, 100):
        assert cost.price_s(step) == pytest.approx(model.price_s(step), rel=1e-9)
        assert again.price_s(step) == pytest.approx(model.price_s(step), rel=1e-9)


@pytest.mark.parametrize("context_s", [A100.small.per_decode_context_token_s, -2e-6])
def test_many_chunks_are_priced_as_one(context_s: float) -> None:
    """A step with each of many chunks, of both regimes, and what it is without their contexts.

    None is shorter than a step without anything, as where a fit makes contexts shorten steps.
    """
    small, large = (
        replace(line, per_decode_context_token_s=context_s) for line in (A100.small, A100.large)
    )
    model = StepModel(replace(A100, small=small, large=large))
    base = StepFeatures(64, 200, 100, 90_000)
    num_tokens = np.array([1, 100, 248, 249, 2_000])
    contexts = np.array([0, 700, 10_000, 10_000, 100_000])
    found = model.prices_with_chunk_s(base, num_tokens, contexts)
    for prices, of_contexts in zip(found, (contexts, 0 * contexts), strict=True):
        steps = [
            StepFeatures(
                64 + n, 200, 100 + c, 90_000, base.prefill_attended_tokens + attended_tokens(c, n)
            )
            for n, c in zip(num_tokens.tolist(), of_contexts.tolist(), strict=True)
        ]
        assert prices.tolist() == pytest.approx([model.price_s(step) for step in steps], rel=1e-12)
