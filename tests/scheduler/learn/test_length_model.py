"""The length model, on tenants whose outputs are known."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.learn.length_model import LengthModel

MAX_TOKENS = 4096


def median_of(model: LengthModel, tenant_id: str, num_prompt_tokens: int = 100) -> float:
    return model.quantile(tenant_id, num_prompt_tokens, 0.5, max_tokens=MAX_TOKENS)


def teach(
    model: LengthModel, tenant_id: str, num_output_tokens: int, *, num_prompt_tokens: int = 100
) -> None:
    """Let a tenant be just known enough."""
    for _ in range(20):
        model.observe(tenant_id, num_prompt_tokens, num_output_tokens)


def test_nothing_known_is_a_share_of_what_may_come() -> None:
    """Without a sample lengths are spread evenly up to a share of what is left of max_tokens."""
    model = LengthModel(prior_share=0.5)
    assert median_of(model, "a") == 1024
    assert model.quantile("a", 100, 0.9, generated=2048, max_tokens=MAX_TOKENS) == pytest.approx(
        2048 + 0.9 * 1024
    )
    assert model.quantile("a", 100, 0.5, generated=15, max_tokens=16) == 16
    assert model.quantile("a", 100, 0.5, max_tokens=1) == 1


def test_backs_off_from_the_particular_to_the_general() -> None:
    """Tenant and prompt size, tenant, prompt size, everybody: the first that knows answers."""
    model = LengthModel()
    teach(model, "a", 10, num_prompt_tokens=100)
    teach(model, "a", 20, num_prompt_tokens=1000)
    teach(model, "b", 400, num_prompt_tokens=5000)
    assert median_of(model, "a", 120) == 10
    assert median_of(model, "a", 900) == 20
    assert median_of(model, "a", 5000) in (10, 20)
    assert median_of(model, "new", 120) == 10
    assert median_of(model, "new", 5000) == 400
    assert median_of(model, "new", 30_000) == 20  # the middle one of all


def test_few_samples_are_no_knowledge() -> None:
    """With 19 samples a cell does not answer yet, with 20 it does."""
    model = LengthModel()
    for _ in range(19):
        model.observe("a", 100, 7)
    assert median_of(model, "a") == 1024
    model.observe("a", 100, 7)
    assert median_of(model, "a") == 7


def test_what_was_generated_is_a_condition() -> None:
    """Outputs of 10 or 1,000: who is past 10 will get to 1,000."""
    model = LengthModel()
    for _ in range(50):
        model.observe("a", 100, 10)
        model.observe("a", 100, 1000)
    assert model.quantile("a", 100, 0.4, max_tokens=MAX_TOKENS) == 10
    assert model.quantile("a", 100, 0.4, generated=9, max_tokens=MAX_TOKENS) == 10
    assert model.quantile("a", 100, 0.4, generated=10, max_tokens=MAX_TOKENS) == 1000


def test_longer_than_a_tenant_ever_was() -> None:
    """Past everything its own cells have seen, the others' and then the prior answer."""
    model = LengthModel()
    teach(model, "a", 10)
    teach(model, "b", 500)
    assert model.quantile("a", 100, 0.5, generated=10, max_tokens=MAX_TOKENS) == 500
    past_all = model.quantile("a", 100, 0.5, generated=500, max_tokens=MAX_TOKENS)
    assert past_all == 500 + 0.25 * (MAX_TOKENS - 500)


def test_old_outputs_give_way() -> None:
    """After as many new outputs as the window holds, nothing of the old ones is left."""
    model = LengthModel(window=30)
    teach(model, "a", 2000)
    for _ in range(30):
        model.observe("a", 100, 5)
    assert model.quantile("a", 100, 1.0, max_tokens=MAX_TOKENS) == 5


def test_tenants_are_bounded() -> None:
    """The tenant that finished nothing for longest is forgotten; everybody's cells stay."""
    model = LengthModel(max_tenants=2)
    for tenant_id, length in (("a", 10), ("b", 200), ("a", 10), ("a", 10), ("c", 300)):
        teach(model, tenant_id, length)
    assert [median_of(model, t) for t in ("a", "c")] == [10, 300]
    assert median_of(model, "b") == median_of(model, "never seen") == 10


def test_quantiles_cover_what_they_promise() -> None:
    """Of tenants with different lengths, 90 % of the outputs stay within the P90."""
    model = LengthModel()
    draw = random.Random(1)
    num_within = num_late_within = num_late = 0
    for number in range(12_000):
        tenant = draw.randrange(5)
        length = 1 + int(draw.lognormvariate(3 + tenant, 0.8))
        if number >= 2000:
            p90 = model.quantile(f"t{tenant}", 100, 0.9, max_tokens=10**6)
            num_within += length <= p90
            generated = int(model.quantile(f"t{tenant}", 100, 0.5, max_tokens=10**6))
            if length > generated:
                num_late += 1
                num_late_within += length <= model.quantile(
                    f"t{tenant}", 100, 0.9, generated=generated, max_tokens=10**6
                )
        model.observe(f"t{tenant}", 100, length)
    assert 0.88 < num_within / 10_000 < 0.92
    assert 0.88 < num_late_within / num_late < 0.92


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 5000), st.integers(0, 5000)), max_size=150
    ),
    st.floats(0, 1),
    st.integers(0, 4000),
    st.integers(1, 5000),
)
def test_prediction_is_between_the_next_token_and_the_limit(
    observed: list[tuple[str, int, int]], q: float, generated: int, max_tokens: int
) -> None:
    """Whatever was seen, a length exceeds what is generated, unless that is the limit already."""
    model = LengthModel(window=20)
    for tenant_id, num_prompt_tokens, num_output_tokens in observed:
        model.observe(tenant_id, num_prompt_tokens, num_output_tokens)
    predicted = model.quantile("a", 100, q, generated=generated, max_tokens=max_tokens)
    assert min(max(generated, 0.0001), max_tokens) <= predicted <= max_tokens
    if 0 < generated < max_tokens:
        assert predicted >= generated + 1


def test_a_tail_of_few_is_not_relied_on() -> None:
    """Of twenty outputs of which one went on for long, who goes on too is not told to end there."""
    model = LengthModel(prior_share=0.5)
    teach(model, "a", 10)
    for length in (900, 900, 900, 900):
        model.observe("a", 100, length)
    asked = {"generated": 50, "max_tokens": 2_050}
    assert model.quantile("a", 100, 0.5, **asked) == 50 + 0.25 * 2_000
    model.observe("a", 100, 900)
    assert model.quantile("a", 100, 0.5, **asked) == 900.0


def test_no_output_is_longer_than_it_may_be() -> None:
    """What was learned of long answers, and what is not known, keep to what is asked for."""
    model = LengthModel(prior_share=0.5, max_prior=4_096)
    assert model.quantile("new", 100, 0.5, max_tokens=1_000_000) == 0.25 * 4_096
    teach(model, "a", 500)
    assert model.quantile("a", 100, 0.9, max_tokens=100) == 100.0
