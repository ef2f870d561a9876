"""Offline fits of step costs, and the profiles made of them."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from engine.step_cost import LinearCost, StepCost, StepFeatures, load_profile
from scheduler.learn.step_fit import Sample, fit, save_profile

ONE = LinearCost(0.002, 0.0, 4e-5, 1e-4, 1e-7, 2e-7, 3e-8)
ONE_REGIME = StepCost("one", ONE, ONE)
TWO_REGIMES = StepCost(
    "two", LinearCost(0.015, 0.0, 8e-5, 1e-4, 1e-7, 8e-7), LinearCost(0.1, 0.0, 2e-4, 0.0, 2e-7)
)


def measure(truth: StepCost, *, count: int = 200, noise: float = 0.05) -> list[Sample]:
    draw = random.Random(1)
    samples = []
    for _ in range(count):
        num_decode, num_prefill = draw.randint(0, 64), draw.choice((0, draw.randint(1, 1500)))
        step = StepFeatures(
            num_prefill,
            num_decode or 1,
            draw.choice((0, 2000)) if num_prefill else 0,
            num_decode * draw.randint(50, 1000),
        )
        samples.append((step, truth.price_s(step) * draw.lognormvariate(0, noise)))
    return samples


@pytest.mark.parametrize("truth", [ONE_REGIME, TWO_REGIMES], ids=["one", "two"])
def test_known_coefficients_are_found(truth: StepCost) -> None:
    """The held-out error is about that of the noise, and prices are the truth's within 5 %."""
    found = fit(measure(truth), name="found")
    assert found.held_out_mape < 0.06
    for step, _ in measure(truth, count=50):
        assert found.cost.price_s(step) == pytest.approx(truth.price_s(step), rel=0.05)


def test_second_regime_only_where_the_steps_say_so() -> None:
    """Steps of one line get one, steps of two get both, split where it was."""
    # By the first one steps of two lines are predicted clearly better too.
    splits = (400, 512)
    one = fit(measure(ONE_REGIME), name="one", split_num_tokens=splits).cost
    assert one.small == one.large
    two = fit(measure(TWO_REGIMES, noise=0.3), name="two", split_num_tokens=splits).cost
    assert two.small != two.large
    assert two.split_num_tokens == 512


def test_regimes_that_hardly_differ_are_one() -> None:
    """Where large steps cost a tenth more, two lines predict a little better, and not clearly."""
    large = replace(ONE, per_prefill_token_s=1.1 * ONE.per_prefill_token_s)
    found = fit(measure(StepCost("near", ONE, large), noise=0.02), name="near").cost
    assert found.small == found.large


def test_no_regime_is_fitted_to_a_few_steps() -> None:
    """Seventeen large steps are too few for six coefficients of their own."""
    samples = measure(TWO_REGIMES)
    small = [sample for sample in samples if sample[0].num_tokens <= 512]
    large = [sample for sample in samples if sample[0].num_tokens > 512]
    found = fit([*small, *large[:17]], name="few").cost
    assert found.small == found.large


def test_the_error_is_on_steps_that_were_left_out() -> None:
    """Of thirty noisy steps it is larger than on those that the cost was fitted to."""
    samples = measure(ONE_REGIME, count=30, noise=0.3)
    found = fit(samples, name="found")
    own = sum(abs(found.cost.price_s(step) / step_s - 1) for step, step_s in samples) / 30
    assert found.held_out_mape > 1.1 * own


def test_noise_makes_no_step_cheaper() -> None:
    """Steps that took less than the mean do not count for more than those that took longer."""
    samples = measure(ONE_REGIME, count=400, noise=0.3)
    cost = fit(samples, name="found").cost
    ratios = [cost.price_s(step) / ONE_REGIME.price_s(step) for step, _ in samples]
    assert sum(ratios) / 400 == pytest.approx(1.0, abs=0.06)


def test_nothing_gets_cheaper_by_more_work() -> None:
    """Where a plain fit would go below zero, the coefficient is zero."""
    falling = replace(ONE, per_decode_token_s=-2e-5)
    cost = fit(measure(StepCost("falling", falling, falling)), name="found").cost
    for line in (cost.small, cost.large):
        assert line.per_decode_token_s == 0
        assert line.intercept_s > 0
        assert line.per_prefill_token_s > 0


def test_hiccups_do_not_bend_the_fit() -> None:
    """One step in fifty that takes 2 s leaves the others' prices within 10 %."""
    samples = measure(ONE_REGIME)
    disturbed = [(step, 2.0 if i % 50 == 7 else s) for i, (step, s) in enumerate(samples)]
    cost = fit(disturbed, name="found").cost
    for step, _ in samples:
        assert cost.price_s(step) == pytest.approx(ONE_REGIME.price_s(step), rel=0.1)


def test_too_little_to_fit() -> None:
    """Few samples, or steps that took no time, are refused in words."""
    samples = measure(ONE_REGIME)
    with pytest.raises(ValueError, match="24 samples are too few"):
        fit(samples[:24], name="few")
    with pytest.raises(ValueError, match="a step takes time"):
        fit([*samples, (StepFeatures(1), 0.0)], name="none")


def test_profile_is_read_as_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A saved profile, laid where profiles are, is the cost that was saved."""
    cost = fit(measure(TWO_REGIMES), name="mine").cost
    save_profile(cost, tmp_path / "mine.json", source="two µ-regimes, made up", estimate=True)
    monkeypatch.setattr("engine.step_cost._profiles", lambda: tmp_path)
    assert load_profile("mine") == cost
    written = json.loads((tmp_path / "mine.json").read_text("utf-8"))
    assert (written["source"], written["estimate"]) == ("two µ-regimes, made up", True)
