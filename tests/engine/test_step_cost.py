"""What steps cost."""

from __future__ import annotations

import pytest

from engine.contract import DecodeRows, SequenceSlice, StepPlan
from engine.step_cost import LinearCost, StepCost, StepFeatures, load_profile, profile_names


def plan_of(decode_positions: list[int], chunks: list[tuple[int, int]]) -> StepPlan:
    rows = DecodeRows()
    for slot, position in enumerate(decode_positions):
        rows.append(slot, position)
    slices = [
        SequenceSlice(100 + i, start, n_tokens, (), True)
        for i, (start, n_tokens) in enumerate(chunks)
    ]
    return StepPlan(0, rows, slices)


def test_features_are_read_off_a_plan() -> None:
    """A plan's positions and starts are the contexts of its rows."""
    features = StepFeatures.of_plan(plan_of([10, 20, 30], [(0, 100), (64, 36)]))
    assert features == StepFeatures(
        num_prefill_tokens=136,
        num_decode_tokens=3,
        prefill_context_tokens=64,
        decode_context_tokens=60,
        prefill_attended_tokens=sum(range(1, 101)) + sum(range(65, 101)),
    )
    assert features.num_tokens == 139


def test_prefills_without_their_attention_count_as_one() -> None:
    """Where it is not said what prompt tokens attend to, they are one sequence's."""
    assert StepFeatures(num_prefill_tokens=36, prefill_context_tokens=64) == StepFeatures.of_plan(
        plan_of([], [(64, 36)])
    )
    assert StepFeatures(num_decode_tokens=3).prefill_attended_tokens == 0


def test_a100_profile_prices_by_the_published_coefficients() -> None:
    """Small and large steps follow their own published regime."""
    cost = load_profile("a100-llama-3-8b")
    small = StepFeatures(num_decode_tokens=32, decode_context_tokens=32_000)
    assert cost.price_s(small) == pytest.approx(
        0.014936 + 32 * (5.882475e-5 + 3.634519e-5) + 32_000 * 1.111258e-7
    )
    large = StepFeatures(num_prefill_tokens=1000, prefill_context_tokens=500)
    assert cost.price_s(large) == pytest.approx(
        0.005004 + 1000 * (2.719050e-5 + 6.863043e-5) + 500 * 2.727223e-6
    )


def test_plan_costs_what_its_features_do() -> None:
    """A plan can be priced directly."""
    cost = load_profile("a100-llama-3-8b")
    plan = plan_of([10, 20], [(8, 600)])
    assert cost.price_s(plan) == cost.price_s(StepFeatures.of_plan(plan))


def test_regimes_meet_at_the_split() -> None:
    """The split itself is a small step, one token more is a large one."""
    cost = StepCost("c", LinearCost(1.0, 0.0), LinearCost(2.0, 0.0), split_num_tokens=10)
    assert cost.price_s(StepFeatures(num_prefill_tokens=10)) == 1.0
    assert cost.price_s(StepFeatures(num_prefill_tokens=11)) == 2.0


def test_price_never_falls_below_an_empty_step() -> None:
    """Where a fit would go below its smaller intercept, the intercept is the price."""
    cost = load_profile("a100-llama-3-8b")
    assert cost.price_s(StepFeatures(num_decode_tokens=600)) == 0.005004


@pytest.mark.parametrize("name", profile_names())
def test_shipped_profiles_load_under_their_names(name: str) -> None:
    """Each shipped profile says the name of its file and gives steps a price."""
    cost = load_profile(name)
    assert cost.name == name
    assert cost.price_s(StepFeatures(num_decode_tokens=1)) > 0


def test_unknown_profile_names_the_known() -> None:
    """Asking for a profile that is not there, or for a path, lists those that are."""
    for name in ("h900", "../kv/table"):
        with pytest.raises(FileNotFoundError, match="a100-llama-3-8b, cpu-demo"):
            load_profile(name)
